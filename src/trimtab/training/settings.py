"""Everything a training run is told, from flags, a YAML file and the recipes."""

import difflib
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from trimtab.training.methods import Method
from trimtab.training.probing import chosen


def _told(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a run. What is None is decided by the recipe for network, data, method and batch size."""

    data: str = _told("digits", "data set")
    network: str = _told("small-cnn", "network")
    method: str = _told("bnp", "vanilla, a norm (bn, ln, gn, ...), bnp, bnp-debias, or bnp+NORM")
    batch_size: int | None = _told(None, "samples per step; 0: all of them")
    epochs: int | None = _told(None, "passes over the training data")
    steps: int | None = _told(None, "steps instead of epochs")
    seed: int = _told(0, "decides weights, order, augmentation and noise")

    optimizer: Literal["sgd", "adam", "adamw"] | None = _told(None, "sgd, adam or adamw")
    lr: float | None = _told(None, "learning rate")
    momentum: float | None = _told(None, "of sgd")
    nesterov: bool | None = _told(None, "Nesterov's momentum")
    weight_decay: float | None = _told(None, "of the optimizer")
    decay_on: Literal["all", "weights", "norms"] | None = _told(None, "what the weight decay is for")
    schedule: Literal["constant", "step", "cosine", "decay"] | None = _told(None, "course of the learning rate")
    milestones: tuple[int, ...] | None = _told(None, "epochs at which schedule step multiplies by factor")
    factor: float | None = _told(None, "of schedule step (times it) and decay (times 1 minus it, at each step)")
    warmup: int | None = _told(None, "steps of warm-up")
    warmup_epochs: int | None = _told(None, "further warm-up, in epochs")
    warmup_from: float | None = _told(None, "learning rate the warm-up begins with")
    warmup_linear: bool | None = _told(None, "a warm-up that rises, or stays and then jumps")

    normalize: Literal["unit", "standard"] | None = _told(None, "inputs in [0, 1], or of mean 0 and variance 1")
    augment: bool | None = _told(None, "pad, crop and flip the training images")
    validation: int = _told(0, "training samples set aside for validation")
    evaluate_on: Literal["validation", "test"] | None = _told(None, "validation if there is one, else test")

    norm_layers: tuple[int, ...] | None = _told(None, "places in the network that get the norm; all if not given")
    before_activation: bool = _told(False, "norm before the activation, where the paper has it after it")
    group_size: int | None = _told(None, "channels in a group of gn")
    gamma: float = _told(1.0, "initial gamma of the norm")
    norm_momentum: float | None = _told(None, "share of the new value in the norm's running averages")
    norm_eps: float | None = _told(None, "added to the norm's variance")
    fixed_gamma: bool = _told(False, "gamma stays as it is")
    zeta: float = _told(0.0, "explicit decay zeta times the sum of gamma squared")
    dropout: float = _told(0.0, "after each norm, where the network has it")
    init: str | None = _told(None, "initialization: glorot, he or meanfield")
    init_scale: float | None = _told(None, "times the initial weights")
    conv_bias: bool | None = _told(None, "biases in the convolutions")
    sigma_w2: float = _told(2.0, "variance of the weights in meanfield initialization")
    sigma_b2: float = _told(0.5, "variance of the biases in meanfield initialization")
    stem: Literal["cifar", "imagenet"] | None = _told(None, "first layer of the 18-layer ResNets")

    rho: float = _told(0.99, "BNP: share of the running averages that a step keeps")
    eps1: float = _told(1e-2, "BNP: times the largest variance, added to each")
    eps2: float = _told(1e-4, "BNP: added to each variance")
    statistics: Literal["running", "batch"] = _told("running", "BNP: averages, or the step's own")
    spatial: Literal["channel", "site"] = _told("channel", "BNP: statistics per channel or per kernel site")
    no_bias: Literal["second_moment", "variance"] = _told("second_moment", "BNP: what scales weights without bias")

    precision: Literal["fp32", "tf32", "bf16"] = _told("fp32", "fp32, tf32 or bf16")
    step: Literal["auto", "eager", "captured"] = _told("auto", "auto, eager, or captured as a CUDA graph")
    compile: bool = _told(False, "compile the network")
    log_every: int = _told(50, "steps between two records of the training loss")
    evaluate_every: int | None = _told(None, "epochs between two evaluations")
    evaluations: int | None = _told(None, "evaluations instead, evenly over the run")
    probe: tuple[str, ...] = _told((), "measure along the way: landscape, random, shift, ... or all")
    probe_every: int = _told(64, "steps between two measurements")
    probe_at: tuple[int, ...] = _told((), "measure at these steps instead")

    def __post_init__(self) -> None:
        """Refuse numbers that have no meaning, naming the setting."""
        for names, allowed, words in _RANGES:
            for name in names:
                value = getattr(self, name)
                if value is not None and not allowed(value):
                    raise ValueError(f"{name} must be {words}, not {value!r}")
        chosen(self.probe)

    def resolved(self, recipe: Mapping[str, Any]) -> "Settings":
        """With what is None taken from a recipe, where that says something.

        Steps and epochs are two ways to say one thing: whoever gives one of them has decided both.
        """
        taken = {name: value for name, value in recipe.items() if getattr(self, name) is None}
        if self.steps is not None or self.epochs is not None:
            taken = {name: value for name, value in taken.items() if name not in ("steps", "epochs")}
        return replace(self, **taken)

    @property
    def parsed_method(self) -> Method:
        """The method, taken apart."""
        return Method.parse(self.method)


_RANGES: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (("epochs", "steps", "log_every", "evaluate_every", "evaluations", "probe_every"), lambda n: n >= 1, "1 or more"),
    (("probe_at",), lambda steps: all(n >= 0 for n in steps), "steps counted from 0"),
    (("batch_size", "warmup", "warmup_epochs", "validation", "seed"), lambda n: n >= 0, "0 or more"),
    (("lr", "warmup_from"), lambda x: 0 <= x <= 1e30, "from 0 to 1e30"),
    (("weight_decay", "zeta"), lambda x: 0 <= x < math.inf, "a finite number, 0 or larger"),
    (("momentum", "dropout"), lambda x: 0 <= x < 1, "in [0, 1)"),
    (("factor",), lambda x: 0 <= x <= 1, "in [0, 1]"),
)


def from_mapping(given: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Settings by name, as a YAML file has them, checked and converted.

    Raises:
        ValueError: If a name is not known or a value is of the wrong type; it names `where`.
    """
    hints = get_type_hints(Settings)
    checked = {}
    for raw, value in given.items():
        name = str(raw).replace("-", "_")
        if name not in hints:
            near = difflib.get_close_matches(name, list(hints), n=1)
            raise ValueError(
                f"{where}: there is no setting {raw!r}" + (f"; did you mean {near[0]!r}?" if near else ".")
            )
        try:
            checked[name] = convert(value, hints[name])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {name}: {error}") from None
    return checked


def convert(value: Any, hint: Any) -> Any:
    """A value from YAML or a command line as the type that a setting has."""
    if get_origin(hint) in (Union, types.UnionType):
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        (hint,) = (option for option in get_args(hint) if option is not type(None))
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ValueError(f"must be one of {', '.join(get_args(hint))}, not {value!r}")
        return value
    if get_origin(hint) is tuple:
        parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
        return tuple(convert(part.strip() if isinstance(part, str) else part, get_args(hint)[0]) for part in parts)
    if hint is bool:
        words = {"true": True, "yes": True, "false": False, "no": False}
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
        raise ValueError(f"must be true or false, not {value!r}")
    if isinstance(value, bool) or (hint is int and isinstance(value, float) and not value.is_integer()):
        raise ValueError(f"must be of type {hint.__name__}, not {value!r}")
    try:
        return hint(value)
    except ValueError:
        kind = {int: "a whole number", float: "a number"}.get(hint, hint.__name__)
        raise ValueError(f"must be {kind}, not {value!r}") from None


def names_and_help() -> list[tuple[str, str, Any]]:
    """Name, explanation and type of each setting, for a command line."""
    hints = get_type_hints(Settings)
    return [(f.name, f.metadata["help"], hints[f.name]) for f in fields(Settings)]
