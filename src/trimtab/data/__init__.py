"""Data sets as tensors."""

from trimtab.data.digits import Split, digits

__all__ = ["Split", "digits"]
