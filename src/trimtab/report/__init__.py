"""Turns records into tables, figures, sentences and an HTML page."""

from trimtab.renamed import renamed_members
from trimtab.report.collecting import collect
from trimtab.report.conclusion import conclusion
from trimtab.report.figures import NamedFigure, check_kinds, drawn, figures, save, write_figures
from trimtab.report.page import write_page
from trimtab.report.report_data import ReportData
from trimtab.report.table import table

__all__ = [
    "NamedFigure",
    "ReportData",
    "check_kinds",
    "collect",
    "conclusion",
    "drawn",
    "figures",
    "save",
    "table",
    "write_figures",
    "write_page",
]
__getattr__ = renamed_members(globals(), Material="ReportData")
