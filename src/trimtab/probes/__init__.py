"""Measurements on any model: what the loss surface and the Fisher matrix of a real network look like."""

from trimtab.probes.conditioning import Conditioning, ConditioningResult, LayerConditioning
from trimtab.probes.spectrum import Jacobian, fisher_lambda_max, lanczos_max

__all__ = [
    "Conditioning",
    "ConditioningResult",
    "Jacobian",
    "LayerConditioning",
    "fisher_lambda_max",
    "lanczos_max",
]
