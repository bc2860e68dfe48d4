"""How much noise a batch brings: into BatchNorm's statistics, and into the gradient."""

from trimtab.probes.noise.layer_noise import LayerNoise
from trimtab.probes.noise.probe import BatchNoise, BatchNoiseResult
from trimtab.probes.noise.splitting import split_batch

__all__ = ["BatchNoise", "BatchNoiseResult", "LayerNoise", "split_batch"]
