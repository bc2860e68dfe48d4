"""The noise of batches: in BatchNorm's statistics, and in the gradient."""

from trimtab.probes.batches import split_batch
from trimtab.probes.noise.layer_noise import LayerNoise
from trimtab.probes.noise.probe import BatchNoise, BatchNoiseResult

__all__ = ["BatchNoise", "BatchNoiseResult", "LayerNoise", "split_batch"]
