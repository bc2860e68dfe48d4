"""trimtab: what batch normalization does to training, as preconditioner, measurement and prediction."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab import (
        bnp,
        data,
        doctor,
        integrations,
        networks,
        norms,
        prediction,
        probes,
        records,
        report,
        theory,
        training,
    )
    from trimtab.bnp import BNP, Moments, Rows, TrimtabWarning, fold_batchnorm, register_layer, without_batchnorm
    from trimtab.doctor import Doctor, suggest_lr
    from trimtab.prediction import predict
    from trimtab.training.loading import load_run

    __version__: str

__all__ = [
    "BNP",
    "Doctor",
    "Moments",
    "Rows",
    "TrimtabWarning",
    "__version__",
    "bnp",
    "claims",
    "data",
    "doctor",
    "fold_batchnorm",
    "integrations",
    "load_run",
    "networks",
    "norms",
    "predict",
    "prediction",
    "probes",
    "records",
    "register_layer",
    "report",
    "suggest_lr",
    "theory",
    "training",
    "without_batchnorm",
]
_HOMES = {
    "Doctor": "trimtab.doctor",
    "load_run": "trimtab.training.loading",
    "predict": "trimtab.prediction",
    "suggest_lr": "trimtab.doctor",
}
_SUBPACKAGES = {
    "bnp",
    "claims",
    "data",
    "doctor",
    "integrations",
    "networks",
    "norms",
    "prediction",
    "probes",
    "records",
    "report",
    "theory",
    "training",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: torch takes a second, and scipy is not always needed."""
    from importlib import import_module

    if name in _SUBPACKAGES:
        return import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = _version() if name == "__version__" else getattr(import_module(_HOMES.get(name, "trimtab.bnp")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return list(__all__)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("trimtab")
    except PackageNotFoundError:  # run from a source tree that was not installed
        return "0+unknown"
