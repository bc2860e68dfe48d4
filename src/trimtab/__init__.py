"""trimtab: what batch normalization does to training, as preconditioner, measurement and prediction."""

from importlib.metadata import PackageNotFoundError, version

from trimtab.bnp import BNP, Moments, Rows, TrimtabWarning, register_layer, without_batchnorm

try:
    __version__ = version("trimtab")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+unknown"

__all__ = ["BNP", "Moments", "Rows", "TrimtabWarning", "__version__", "register_layer", "without_batchnorm"]
