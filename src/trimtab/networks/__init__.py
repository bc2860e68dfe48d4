"""The architectures of the papers, with the normalization as an argument."""

from trimtab.networks.activations import ACTIVATIONS
from trimtab.networks.initialize import INITS
from trimtab.networks.registry import NETWORKS, build, input_shape, places

__all__ = ["ACTIVATIONS", "INITS", "NETWORKS", "build", "input_shape", "places"]
