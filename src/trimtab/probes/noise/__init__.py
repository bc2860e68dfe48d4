"""The noise of batches: in BatchNorm's statistics, and in the gradient."""

from trimtab.probes.noise.layer_noise import LayerNoise
from trimtab.probes.noise.probe import BatchNoise, BatchNoiseResult
from trimtab.probes.noise.splitting import split_batch

__all__ = ["BatchNoise", "BatchNoiseResult", "LayerNoise", "split_batch"]
