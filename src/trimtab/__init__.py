"""trimtab: what batch normalization does to training, as preconditioner, measurement and prediction."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.bnp import BNP, Moments, Rows, TrimtabWarning, register_layer, without_batchnorm
    from trimtab.theory.from_model import predict
    from trimtab.training.loading import load_run

    __version__: str

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
_ELSEWHERE = {"predict": "trimtab.theory.from_model", "load_run": "trimtab.training.loading"}


def __getattr__(name: str) -> Any:
    """What is imported when it is asked for, not before: torch takes a second, and scipy is not always needed."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        value: Any = _version()
    else:
        from importlib import import_module

        value = getattr(import_module(_ELSEWHERE.get(name, "trimtab.bnp")), name)
    globals()[name] = value
    return value


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("trimtab")
    except PackageNotFoundError:  # run from a source tree that was not installed
        return "0+unknown"
