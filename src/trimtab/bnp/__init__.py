"""Batch normalization preconditioning: BatchNorm's statistics applied to the gradients."""

from trimtab.bnp.convert import without_batchnorm
from trimtab.bnp.layers import input_first, output_first, register_layer
from trimtab.bnp.options import Options
from trimtab.bnp.preconditioner import BNP
from trimtab.bnp.report import LayerReport, Report
from trimtab.bnp.statistics import Moments, Rows
from trimtab.notice import TrimtabWarning

__all__ = [
    "BNP",
    "LayerReport",
    "Moments",
    "Options",
    "Report",
    "Rows",
    "TrimtabWarning",
    "input_first",
    "output_first",
    "register_layer",
    "without_batchnorm",
]
