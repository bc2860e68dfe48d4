"""A method is what a person compares: `[bnp | bnp-debias][+norm]`, or a norm alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trimtab.nearest import nearest
from trimtab.norms import NORMS, WITHOUT_BETA, WITHOUT_GAMMA

METHODS: dict[str, str] = {
    "vanilla": "the network as it is",
    "bnp": "batch normalization preconditioning of the gradients; bnp+NORM in a network with that norm",
    "bnp-debias": "the same with averages that are corrected for their start; bnp-debias+NORM likewise",
    **{name: description for name, description in NORMS.items() if name != "none"},
}
"""The methods, each with one line on what it is. NORM-pre puts a norm before the activation."""


@dataclass(frozen=True, slots=True)
class Method:
    """How a network is trained.

    Attributes:
        name: As it was given.
        norm: The name of the normalization that the network is built with; `-pre` puts it before the activation.
        bnp: Whether its gradients are preconditioned.
        debias: Whether its running averages are debiased.
    """

    name: str
    norm: str
    bnp: bool
    debias: bool

    @classmethod
    def parse(cls, name: str) -> "Method":
        """The method of a name.

        Raises:
            ValueError: If its norm is not known, or cannot be combined with BNP.
        """
        first, plus, rest = name.partition("+")
        bnp = first in ("bnp", "bnp-debias")
        norm = (rest if plus else "none") if bnp else name
        if norm == "vanilla":
            norm = "none"
        if norm.removesuffix("-pre") not in NORMS:
            near = nearest(name, METHODS)
            known = f"{'Known' if near else 'known'} are {', '.join(METHODS)} and bnp+NORM"
            raise ValueError(f"there is no method {name!r}; {f'did you mean {near!r}? ' if near else ''}{known}")
        if bnp and norm.startswith("wn"):
            raise ValueError(f"{name}: BNP cannot change weights that weight normalization computes; use one of them.")
        return cls(name, norm, bnp=bnp, debias=first == "bnp-debias")

    def uses(self, setting: str) -> bool:
        """Whether a setting makes a difference to this method."""
        norm = self.norm.removesuffix("-pre")
        if setting == "group_size":
            return norm in ("gn", "bn4")
        if setting in _OF_BRN:
            return norm == "brn"
        if setting in _OF_GAMMA or setting in _OF_STATISTICS:
            return norm not in WITHOUT_GAMMA
        if setting == "fixed_beta":
            return norm not in WITHOUT_BETA
        if setting == "dropout_before":  # without a layer of the norm there is no before and after
            return norm not in ("none", "wn")
        return not (setting in _OF_NORMS and norm == "none") and not (setting in _OF_BNP and not self.bnp)


_OF_NORMS = ("before_activation", "norm_layers")
_OF_GAMMA = ("gamma", "fixed_gamma", "zeta")
_OF_STATISTICS = ("norm_momentum", "norm_eps")
_OF_BRN = ("r_max", "d_max", "renorm_start", "renorm_r_end", "renorm_d_end")
_OF_BNP = ("rho", "eps1", "eps2", "statistics", "spatial", "no_bias")


def unused_by(given: Iterable[str], methods: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The settings, of those given, that some methods do not use, each with these methods.

    Raises:
        ValueError: If one means nothing to any of them, or a method is not known.
    """
    parsed = {name: Method.parse(name) for name in methods}
    unused = {setting: tuple(name for name in parsed if not parsed[name].uses(setting)) for setting in given}
    for setting, names in unused.items():
        if len(names) == len(parsed):
            raise ValueError(f"{setting} means nothing to {' or '.join(names)}; leave it out")
    return {setting: names for setting, names in unused.items() if names}


def left_out_notes(unused: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """What `unused_by` has found, in sentences."""
    return tuple(
        f"{name} is left out for {', '.join(methods)}: it means nothing there." for name, methods in unused.items()
    )
