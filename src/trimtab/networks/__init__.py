"""The architectures of the papers, with the normalization as an argument."""

from trimtab.networks.registry import NETWORKS, build, input_shape, places

__all__ = ["NETWORKS", "build", "input_shape", "places"]
