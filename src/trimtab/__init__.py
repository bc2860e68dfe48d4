"""trimtab: what batch normalization does to training, as preconditioner, measurement and prediction."""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from trimtab.bnp import BNP, Moments, Rows, TrimtabWarning, register_layer, without_batchnorm

if TYPE_CHECKING:
    from trimtab.theory.from_model import predict
    from trimtab.training.loading import load_run

try:
    __version__ = version("trimtab")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+unknown"

__all__ = [
    "BNP",
    "Moments",
    "Rows",
    "TrimtabWarning",
    "__version__",
    "load_run",
    "predict",
    "register_layer",
    "without_batchnorm",
]


def __getattr__(name: str) -> Any:
    # What these need is imported when they are asked for, not before.
    if name == "predict":
        from trimtab.theory.from_model import predict

        return predict
    if name == "load_run":
        from trimtab.training.loading import load_run

        return load_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
