"""Records in, tables, figures and sentences out."""

from trimtab.report.conclusion import conclusion
from trimtab.report.figure import draw
from trimtab.report.table import table

__all__ = ["conclusion", "draw", "table"]
