"""Batch normalization preconditioning: BatchNorm's statistics applied to the gradients."""

from trimtab.bnp.algorithm.moments import Moments, Rows
from trimtab.bnp.attachment import bnps_attached_to
from trimtab.bnp.convert import without_batchnorm
from trimtab.bnp.folding import fold_batchnorm
from trimtab.bnp.layers import input_first, output_first, register_layer
from trimtab.bnp.options import Options
from trimtab.bnp.preconditioner import BNP
from trimtab.bnp.report import LayerReport, Report
from trimtab.notice import TrimtabWarning

__all__ = [
    "BNP",
    "LayerReport",
    "Moments",
    "Options",
    "Report",
    "Rows",
    "TrimtabWarning",
    "bnps_attached_to",
    "fold_batchnorm",
    "input_first",
    "output_first",
    "register_layer",
    "without_batchnorm",
]
