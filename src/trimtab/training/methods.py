"""A method is what a person compares: `[bnp | bnp-debias][+norm]`, or a norm alone."""

import difflib
from dataclasses import dataclass

from trimtab.norms import NORMS

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
        debias: Whether with debiased averages.
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
        first, _, rest = name.partition("+")
        bnp = first in ("bnp", "bnp-debias")
        norm = (rest if bnp else name) or "none"
        if norm == "vanilla":
            norm = "none"
        if norm.removesuffix("-pre") not in NORMS:
            near = difflib.get_close_matches(name, ["vanilla", "bnp", "bnp-debias", *NORMS], n=1, cutoff=0.0)[0]
            raise ValueError(f"there is no method {name!r}; did you mean {near!r}?")
        if bnp and norm.startswith("wn"):
            raise ValueError(f"{name}: BNP cannot change weights that weight normalization computes; use one of them.")
        return cls(name, norm, bnp=bnp, debias=first == "bnp-debias")
