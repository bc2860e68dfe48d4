"""Measurements on any model: what the loss surface and the Fisher matrix of a real network look like."""

from trimtab.probes.conditioning import Conditioning, ConditioningResult, LayerConditioning
from trimtab.probes.layer_noise import LayerNoise
from trimtab.probes.noise import BatchNoise, BatchNoiseResult
from trimtab.probes.spectrum import Jacobian, fisher_lambda_max, lanczos_max
from trimtab.probes.splitting import split_batch

__all__ = [
    "BatchNoise",
    "BatchNoiseResult",
    "Conditioning",
    "ConditioningResult",
    "Jacobian",
    "LayerConditioning",
    "LayerNoise",
    "fisher_lambda_max",
    "lanczos_max",
    "split_batch",
]
