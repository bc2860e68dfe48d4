"""The architectures of the papers, with the normalization as an argument."""

from trimtab.networks.registry import NETWORKS, build, places

__all__ = ["NETWORKS", "build", "places"]
