"""The settings of a training run, from flags, a YAML file and the recipes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from trimtab.data import DATASETS
from trimtab.nearest import nearest
from trimtab.networks import ACTIVATIONS, INITS, NETWORKS
from trimtab.probe_registry import PROBES, expand_probe_names
from trimtab.records import RENAMED_SETTINGS, shown
from trimtab.renamed import renamed_options
from trimtab.training.conversion import convert, without_none
from trimtab.training.methods import METHODS, Method

T = TypeVar("T")

# What `--help` puts together.
_WHAT, _OPTIMIZATION, _SCHEDULE = "network and data", "optimization", "learning rate schedule"
_INPUTS, _NORM, _INIT, _BNP = "inputs and evaluation data", "normalization", "initialization and layers", "BNP"
_EXECUTION, _RECORDS, _PROBES = "execution", "records", "measurements"


def _setting(default: Any, text: str, group: str, *, unset: str = "") -> Any:
    """A setting with its explanation; `unset` says what None means where no recipe decides it."""
    return field(default=default, metadata={"help": text, "group": group, "unset": unset})


@renamed_options(**RENAMED_SETTINGS)
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a run. What is None is decided by the recipe for network, data, method and batch size."""

    data: str = _setting("digits", "data set", _WHAT)
    network: str = _setting("small-cnn", "network", _WHAT)
    method: str = _setting("bnp", "method, also bnp+NORM", _WHAT)
    batch_size: int | None = _setting(None, "samples per step; 0: all of them", _WHAT)
    epochs: int | None = _setting(None, "passes over the training data", _WHAT)
    steps: int | None = _setting(None, "steps instead of epochs", _WHAT)
    seed: int = _setting(0, "decides weights, order, augmentation and noise", _WHAT)

    loss: Literal["cross_entropy", "squared"] = _setting(
        "cross_entropy", "of a classification; squared: half the squared distance to one-hot targets", _OPTIMIZATION
    )
    optimizer: Literal["sgd", "adam", "adamw"] | None = _setting(None, "optimizer", _OPTIMIZATION)
    lr: float | None = _setting(None, "learning rate", _OPTIMIZATION)
    momentum: float | None = _setting(None, "of sgd", _OPTIMIZATION)
    nesterov: bool | None = _setting(None, "Nesterov's momentum", _OPTIMIZATION)
    weight_decay: float | None = _setting(None, "of the optimizer", _OPTIMIZATION)
    decay_on: Literal["all", "weights", "norms"] | None = _setting(None, "what the weight decay is for", _OPTIMIZATION)

    schedule: Literal["constant", "step", "cosine", "decay"] | None = _setting(
        None, "course of the learning rate", _SCHEDULE
    )
    milestones: tuple[int, ...] | None = _setting(None, "epochs at which schedule step multiplies by factor", _SCHEDULE)
    factor: float | None = _setting(
        None, "of schedule step (times it) and decay (times 1 minus it, at each step)", _SCHEDULE
    )
    warmup: int | None = _setting(None, "steps of warm-up", _SCHEDULE)
    warmup_epochs: int | None = _setting(None, "further warm-up, in epochs", _SCHEDULE)
    warmup_from: float | None = _setting(None, "learning rate the warm-up begins with", _SCHEDULE)
    warmup_linear: bool | None = _setting(None, "a warm-up that rises, or stays and then jumps", _SCHEDULE)

    normalize: Literal["unit", "standard", "pixel"] | None = _setting(
        None, "inputs in [0, 1], or of mean 0 and variance 1 in each channel, or in each pixel", _INPUTS
    )
    augment: bool | None = _setting(None, "pad, crop and flip the training images", _INPUTS)
    validation: int = _setting(0, "training samples set aside for validation", _INPUTS)
    evaluate_on: Literal["validation", "test"] | None = _setting(
        None, "what to evaluate on", _INPUTS, unset="validation if there is one, else test"
    )

    norm_layers: tuple[int, ...] | None = _setting(None, "places in the network that get the norm", _NORM, unset="all")
    before_activation: bool = _setting(False, "norm before the activation, where the paper has it after it", _NORM)
    group_size: int | None = _setting(None, "channels in a group of gn", _NORM, unset="recipe, else 4 or a little more")
    gamma: float = _setting(1.0, "initial gamma of the norm", _NORM)
    norm_momentum: float | None = _setting(None, "share of the new value in the norm's running averages", _NORM)
    norm_eps: float | None = _setting(None, "added to the norm's variance", _NORM)
    fixed_gamma: bool = _setting(False, "gamma stays as it is", _NORM)
    fixed_beta: bool = _setting(False, "beta stays at 0", _NORM)
    zeta: float = _setting(0.0, "explicit decay zeta times the sum of gamma squared", _NORM)
    dropout: float = _setting(0.0, "after each norm, where the network has it", _NORM)
    dropout_before: bool = _setting(False, "dropout before each norm instead", _NORM)
    r_max: float = _setting(3.0, "limit of brn's factor r, when it is reached", _NORM)
    d_max: float = _setting(5.0, "limit of brn's shift d, when it is reached", _NORM)
    renorm_start: int | None = _setting(
        None, "steps for which brn is BatchNorm", _NORM, unset="a 32nd of the run, at most 5000"
    )
    renorm_r_end: int | None = _setting(
        None, "step at which brn has r_max", _NORM, unset="a quarter of the run, at most 40000"
    )
    renorm_d_end: int | None = _setting(
        None, "step at which brn has d_max", _NORM, unset="5/32 of the run, at most 25000"
    )

    init_from: str | None = _setting(
        None, "folder of a run, or an exported file, whose weights this run begins with", _INIT, unset="drawn anew"
    )
    fold: bool = _setting(False, "fold the BatchNorm of that run into its weights first", _INIT)
    activation: str | None = _setting(None, "activation function", _INIT, unset="relu; none in dln25")
    depth: int | None = _setting(
        None, "layers of deep-mlp, mf-mlp and small-mlp, the output too", _INIT, unset="25, 4 and 4"
    )
    init: str | None = _setting(None, "initialization of the weights", _INIT, unset="the network's own")
    init_scale: float | None = _setting(None, "times the initial weights", _INIT)
    conv_bias: bool | None = _setting(
        None, "biases in the convolutions", _INIT, unset="yes with bnp, else as in the network's paper"
    )
    sigma_w2: float = _setting(2.0, "variance of the weights in meanfield initialization", _INIT)
    sigma_b2: float = _setting(0.5, "variance of the biases in meanfield initialization", _INIT)
    stem: Literal["cifar", "imagenet"] | None = _setting(None, "first layer of the 18-layer ResNets", _INIT)

    rho: float = _setting(0.99, "share of the running averages that a step keeps", _BNP)
    eps1: float = _setting(1e-2, "times the largest variance, added to each", _BNP)
    eps2: float = _setting(1e-4, "added to each variance", _BNP)
    statistics: Literal["running", "batch"] = _setting("running", "averages, or the step's own", _BNP)
    spatial: Literal["channel", "site"] = _setting("channel", "statistics per channel or per kernel site", _BNP)
    no_bias: Literal["second_moment", "variance"] = _setting("second_moment", "what scales weights without bias", _BNP)

    precision: Literal["fp32", "tf32", "bf16"] = _setting("fp32", "of matrix products and convolutions", _EXECUTION)
    step_mode: Literal["auto", "eager", "captured"] = _setting(
        "auto", "steps operation by operation, or captured as a CUDA graph", _EXECUTION
    )
    compile: bool = _setting(False, "compile the network", _EXECUTION)

    log_every: int | None = _setting(
        None, "steps between two records of the training loss", _RECORDS, unset="50, fewer in a run of under 1000"
    )
    evaluate_every: int | None = _setting(
        None, "epochs between two evaluations; with 1, a run of under 3 epochs is evaluated 4 times", _RECORDS
    )
    evaluations: int | None = _setting(
        None, "so many evaluations instead, evenly over the run", _RECORDS, unset="as evaluate_every says"
    )
    train_subset: int = _setting(
        5000, "training samples on which each evaluation is done too, always the same; 0: none", _RECORDS
    )

    probe: tuple[str, ...] = _setting((), "what to measure along the way", _PROBES)
    probe_every: int = _setting(64, "steps between two measurements", _PROBES)
    probe_at: tuple[int, ...] = _setting((), "measure at these steps instead", _PROBES)
    probe_multiples: tuple[float, ...] | None = _setting(
        None, "multiples of the step at which landscape and random look", _PROBES, unset="those of the landscape paper"
    )

    def __post_init__(self) -> None:
        """Refuse invalid numbers; the error names the setting."""
        for names, allowed, words in _RANGES:
            for name in names:
                value = getattr(self, name)
                if value is not None and not allowed(value):
                    raise ValueError(f"{name} must be {words}, not {shown(value)}")
        if self.steps is not None and self.epochs is not None:
            raise ValueError("steps and epochs are two ways to say how long a run is; give one of them")
        if self.nesterov and self.momentum == 0 and self.optimizer == "sgd":
            raise ValueError("nesterov needs a momentum; give --momentum")
        if self.fold and self.init_from is None:
            raise ValueError("fold is for the BatchNorm of another run; say which one with --init-from")
        for name in ("renorm_r_end", "renorm_d_end"):
            end = getattr(self, name)
            if end is not None and self.renorm_start is not None and end < self.renorm_start:
                raise ValueError(f"{name} is {end}, before renorm_start, {self.renorm_start}; take a later step")
        if not {"landscape", "random"} & {*expand_probe_names(self.probe)} and self.probe_multiples is not None:
            raise ValueError("probe_multiples has no effect without --probe landscape or random; leave it out")

    def resolved(self, recipe: Mapping[str, Any]) -> "Settings":
        """The settings, with those that are None taken from a recipe, if it has them.

        Steps and epochs are two ways to say one thing: whoever gives one of them has decided both. So it is with
        evaluate_every and evaluations.
        """
        taken = {name: value for name, value in recipe.items() if getattr(self, name) is None}
        if self.steps is not None or self.epochs is not None:
            taken = {name: value for name, value in taken.items() if name not in ("steps", "epochs")}
        if self.evaluate_every is not None:
            taken.pop("evaluations", None)
        return replace(self, **taken)

    @property
    def parsed_method(self) -> Method:
        """The method, parsed."""
        return Method.parse(self.method)


_RANGES: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (("epochs", "steps", "log_every", "evaluate_every", "evaluations", "probe_every"), lambda n: n >= 1, "1 or more"),
    (("group_size",), lambda n: n >= 1, "1 or more"),
    (("depth",), lambda n: 2 <= n <= 10_000, "from 2 to 10000"),
    (("renorm_start", "renorm_r_end", "renorm_d_end"), lambda n: n >= 0, "0 or more"),
    (("r_max",), lambda x: 1 <= x < math.inf, "a finite number, 1 or larger"),
    (("probe_at",), lambda steps: all(n >= 0 for n in steps), "steps counted from 0"),
    (
        ("probe_multiples",),
        lambda several: several and all(map(math.isfinite, several)) and len({0.0, *several}) == len(several) + 1,
        "finite numbers other than 0, each given once",
    ),
    (("milestones",), lambda epochs: all(n >= 0 for n in epochs), "epochs, 0 or more"),
    (("batch_size", "warmup", "warmup_epochs", "validation", "seed", "train_subset"), lambda n: n >= 0, "0 or more"),
    (("lr", "warmup_from"), lambda x: 0 <= x <= 1e30, "from 0 to 1e30"),
    (
        ("weight_decay", "zeta", "norm_eps", "sigma_b2", "eps1", "eps2", "d_max"),
        lambda x: 0 <= x < math.inf,
        "a finite number, 0 or larger",
    ),
    (("init_scale", "sigma_w2"), lambda x: 0 < x < math.inf, "a finite number above 0"),
    (("gamma",), math.isfinite, "a finite number"),
    (("momentum", "dropout", "rho"), lambda x: 0 <= x < 1, "in [0, 1)"),
    (("factor", "norm_momentum"), lambda x: 0 <= x <= 1, "in [0, 1]"),
)


def from_mapping(given: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Settings by name, as a YAML file has them, checked and converted.

    Raises:
        ValueError: If a name is not known or a value is of the wrong type; it names `where`.
    """
    hints = get_type_hints(Settings)
    checked: dict[str, Any] = {}
    for raw, value in given.items():
        name = str(raw).replace("-", "_")
        name = RENAMED_SETTINGS.get(name, name)
        if name not in hints:
            near = nearest(name, hints)
            raise ValueError(
                f"{where}: there is no setting {shown(raw)}" + (f"; did you mean {near!r}?" if near else "")
            )
        if name in checked:
            raise ValueError(f"{where}: {name} is given twice, also as {shown(raw)}; leave one of them out")
        try:
            checked[name] = convert(value, hints[name])
        except ValueError as error:
            raise ValueError(f"{where}: {name}: {error}") from None
    return checked


def as_it_was(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that was saved, with what an earlier version did where it had no setting for it."""
    earlier = dict(saved)
    if "renorm_start" not in saved and Method.parse(saved.get("method", "bnp")).norm.removesuffix("-pre") == "brn":
        earlier |= {"renorm_start": 5_000, "renorm_r_end": 40_000, "renorm_d_end": 25_000}  # whatever the length
    return earlier


def resolved(value: T | None) -> T:
    """The value of a setting that is None until a recipe has decided it."""
    if value is None:
        raise ValueError("These settings are not resolved; Settings.resolved does that.")
    return value


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """A setting as a command line shows it.

    Attributes:
        name: The name of the field.
        group: The heading in the help.
        help: Its description.
        default: The default; None if a recipe decides.
        unset: What None means, where no recipe decides.
        choices: The values it can have; empty if there is no such list.
        hint: Its type, without None.
    """

    name: str
    group: str
    help: str
    default: Any
    unset: str
    choices: tuple[str, ...]
    hint: Any

    @property
    def several(self) -> bool:
        """Whether it takes several values, with commas between them."""
        return get_origin(self.hint) is tuple


def setting_infos() -> list[SettingInfo]:
    """All settings, in order."""
    hints = {name: without_none(hint) for name, hint in get_type_hints(Settings).items()}
    named = {"data": DATASETS, "network": NETWORKS, "method": METHODS, "init": INITS, "probe": (*PROBES, "all")}
    named["activation"] = ACTIVATIONS
    return [
        SettingInfo(
            f.name,
            f.metadata["group"],
            f.metadata["help"],
            f.default,
            f.metadata["unset"],
            tuple(named.get(f.name, get_args(hints[f.name]) if get_origin(hints[f.name]) is Literal else ())),
            hints[f.name],
        )
        for f in fields(Settings)
    ]
