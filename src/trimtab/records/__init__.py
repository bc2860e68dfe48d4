"""What happened, as plain data (standard library only)."""

from trimtab.records.comparison import Cell, Comparison
from trimtab.records.machine import machine, usable_cores

__all__ = ["Cell", "Comparison", "machine", "usable_cores"]
