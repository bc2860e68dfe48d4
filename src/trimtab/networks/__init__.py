"""Networks with the normalization as an argument."""

from trimtab.networks.small import NETWORKS, Norm, build

__all__ = ["NETWORKS", "Norm", "build"]
