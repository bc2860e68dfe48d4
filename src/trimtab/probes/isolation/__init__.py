"""A model that can be run without being changed: parameters, buffers and random state are restored afterwards."""

from trimtab.probes.isolation.model import IsolatedModel, Point

__all__ = ["IsolatedModel", "Point"]
