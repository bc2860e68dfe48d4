"""Records in, tables, figures, sentences and a page out."""

from trimtab.report.conclusion import conclusion
from trimtab.report.figures import NamedFigure, check_kinds, figures, save, write_figures
from trimtab.report.material import Material, collect
from trimtab.report.page import write_page
from trimtab.report.table import table

__all__ = [
    "Material",
    "NamedFigure",
    "check_kinds",
    "collect",
    "conclusion",
    "figures",
    "save",
    "table",
    "write_figures",
    "write_page",
]
