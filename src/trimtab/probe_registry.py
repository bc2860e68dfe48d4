"""The registry of the lab's probes: the name, factory and figures of each. For all rooms.

Factories and figures are named as `module:function` and imported when they are needed: training and report must not
import each other, and listing the names must need neither torch nor matplotlib.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from trimtab.nearest import nearest


@dataclass(frozen=True, slots=True)
class ProbeEntry:
    """One probe.

    Attributes:
        description: One line for `trimtab list probes`.
        factory: A function of a training session that makes the probe.
        figures: A function of a report's panel, and of the results along each of its runs, that yields figures.
    """

    description: str
    factory: str
    figures: str

    def load_factory(self) -> Callable[..., Any]:
        """Import the factory."""
        return _load(self.factory)

    def load_figures(self) -> Callable[..., Any]:
        """Import the function that yields figures."""
        return _load(self.figures)


def _entry(name: str, description: str, figures: str = "probe_figures") -> ProbeEntry:
    return ProbeEntry(
        description,
        factory=f"trimtab.training.probe_factories:{name}",
        figures=f"trimtab.report.{figures}:{name}",
    )


PROBES: dict[str, ProbeEntry] = {
    name: _entry(name, description)
    for name, description in {
        "landscape": "the loss along the gradient, and how far the gradient can be trusted",
        "random": "the same along random directions",
        "step": "the loss along the optimizer's own step, and in the metric of that step",
        "shift": "internal covariate shift: how a layer's gradient changes when those below it are updated",
        "activations": "mean, spread, distribution and stable rank of what layers give out",
        "conditioning": "how ill-conditioned each layer's part of the Hessian is",
        "spectrum": "the largest eigenvalues of the Hessian, and the stable learning rate",
        "noise": "the noise that batch statistics and gradients have",
    }.items()
} | {
    name: _entry(name, description, "network_figures")
    for name, description in {
        "weights": "γ, β, norms of weights and of their gradients in each layer",
        "fisher": "the largest eigenvalue of mean field's Fisher matrix, beside that of the loss",
        "gradients": "the gradient at the outputs of normalization layers, in the parts of Theorem 4.1",
        "robustness": "held-out accuracy under one-step sign perturbations of the inputs",
        "ablation": "held-out accuracy while units are switched off in random order",
        "variance": "how far the variance of BatchNorm's inputs in evaluation is from the running variance",
    }.items()
}
"""All probes, by the name that a user types and that records have."""


def expand_probe_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names of probes, each once; `all` stands for all of them.

    Raises:
        ValueError: If there is no probe of a name.
    """
    expanded: dict[str, None] = {}
    for name in names:
        if name != "all" and name not in PROBES:
            near = nearest(name, [*PROBES, "all"])
            hint = f"did you mean {near!r}?" if near else f"there are {', '.join(PROBES)}, and all."
            raise ValueError(f"there is no probe {name!r}; {hint}")
        expanded |= dict.fromkeys(PROBES if name == "all" else [name])
    return tuple(expanded)


def _load(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function
