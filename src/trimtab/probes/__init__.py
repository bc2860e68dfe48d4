"""Measurements on any model: what the loss surface and the Fisher matrix of a real network look like."""

from trimtab.probes.activations import Activations, ActivationsResult, LayerActivations, MomentChange, moment_change
from trimtab.probes.covariate import CovariateShift, CovariateShiftResult, LayerShift
from trimtab.probes.distribution import Distribution
from trimtab.probes.landscape import Landscape, LandscapeResult
from trimtab.probes.spectrum import Jacobian, fisher_lambda_max, lanczos_max

__all__ = [
    "Activations",
    "ActivationsResult",
    "CovariateShift",
    "CovariateShiftResult",
    "Distribution",
    "Jacobian",
    "Landscape",
    "LandscapeResult",
    "LayerActivations",
    "LayerShift",
    "MomentChange",
    "fisher_lambda_max",
    "lanczos_max",
    "moment_change",
]
