"""One case: a short training, with or without BNP."""

import contextlib
import linecache
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

import trimtab
from tests.bnp.fuzz import changes
from tests.bnp.fuzz.draw import Draw
from tests.bnp.fuzz.layers import Drawn, convolution, linear, transposed_convolution
from tests.bnp.fuzz.odd import changed_input, own_way, registered
from tests.bnp.fuzz.tensors import tensor

Variant = Literal["none", "plain", "fast", "reference"]
"""Without BNP, with fast=False, with fast=True; or with fast=False, and what layers do to their input done before."""

Gradients = list[Tensor | str]
"""Of one layer's weight and bias; a word where there are no numbers."""

_LAYERS = [linear] * 5 + [convolution] * 5 + [transposed_convolution] * 2
_LAYERS += [changed_input] * 2 + [own_way] + [registered] * 3
_OURS = str(Path(trimtab.__file__).parent)


@dataclass
class Played:
    """What a case has come to.

    Attributes:
        kinds: What is in it.
        layers: Its layers.
        before: Before each step of BNP, the gradients of each layer: the weight's and the bias's.
        gradients: The same after each step.
        statistics: After all steps, by name.
        said: Our warnings.
        error: Where and how it ended before its time: an error of torch about the user's code, or one of ours.
        ours: Whether that error is one of ours, and a sentence.
        raw: An error that came from our code and should have been a sentence.
    """

    kinds: list[str] = field(default_factory=list)
    layers: list[Drawn] = field(default_factory=list)
    before: list[list[Gradients]] = field(default_factory=list)
    gradients: list[list[Gradients]] = field(default_factory=list)
    statistics: dict[str, Tensor] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    error: str = ""
    ours: bool = False
    raw: str = ""


class Branches(nn.Module):
    """Layers that do not see each other."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(layers)

    def forward(self, inputs: list[Tensor]) -> Tensor:
        loss = torch.zeros((), dtype=torch.float64)
        for layer, x in zip(self.branches, inputs, strict=True):
            y = layer(x)
            loss = loss + (y.abs() if y.is_complex() else y).double().square().sum() / 7
        return loss


def play(seed: int, variant: Variant) -> Played:
    """The case of a seed; all variants make the same choices."""
    played = Played()
    threads = torch.get_num_threads()
    with warnings.catch_warnings(record=True) as caught, torch.random.fork_rng(devices=[]):
        warnings.simplefilter("always")
        torch.manual_seed(seed)
        try:
            _play(Draw(seed), variant, played)
        except Exception as error:
            _note(played, error)
        finally:
            torch.set_num_threads(threads)
    played.said = [str(warning.message) for warning in caught if issubclass(warning.category, trimtab.TrimtabWarning)]
    return played


def _note(played: Played, error: Exception) -> None:
    """Tell apart: our own sentences, errors of torch about what the user did, errors that came from our code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "fuzz" not in Path(frame.filename).parts]
    message = f"{type(error).__name__}: {error}"
    played.error = message
    inside = [frame for frame in frames if frame.filename.startswith(_OURS)]
    if not inside:
        return
    raised = frames[-1].filename.startswith(_OURS) and _is_raised(frames[-1])
    sentence = str(error)[-1:] in (".", "?") and "\n" not in str(error)
    played.ours = raised and sentence and isinstance(error, (ValueError, TypeError, RuntimeError))
    if not played.ours:
        last = inside[-1]
        played.raw = f"{Path(last.filename).name}:{last.lineno} {message.splitlines()[0][:160]}"


def _is_raised(frame: traceback.FrameSummary) -> bool:
    """Whether the line is a raise statement, and not a call of something that raises."""
    return linecache.getline(frame.filename, frame.lineno or 0).strip().startswith("raise ")


def _options(draw: Draw) -> dict[str, object]:
    return {
        "rho": draw.pick([0.0, 0.5, 0.99]),
        "eps1": draw.pick([0.0, 1e-2]),
        "eps2": draw.pick([1e-2, 1e-1]),
        "statistics": draw.pick(["running", "batch"]),
        "debias": draw.chance(0.3),
        "spatial": "site" if draw.chance(0.2) else "channel",
        "tokens": draw.pick(["positions", "samples"]),
        "no_bias": draw.pick(["second_moment", "variance"]),
    }


def _play(draw: Draw, variant: Variant, played: Played) -> None:
    dtype = draw.pick([torch.float32] * 7 + [torch.float64] * 2 + [torch.bfloat16, torch.float16, torch.complex64])
    drawn = [draw.pick(_LAYERS)(draw, dtype) for _ in range(draw.pick([1, 1, 1, 2, 3]))]
    options = _options(draw)
    autocast = draw.chance(0.05)
    played.layers, played.kinds = drawn, [each.kind for each in drawn]
    if variant == "reference":
        layers = [each.layer if each.change is None else _undone(each) for each in drawn]
    else:
        layers = [each.layer for each in drawn]
    model = Branches(layers)
    bnp = None if variant == "none" else trimtab.BNP(model, fast=variant == "fast", **options)  # type: ignore[arg-type]
    with contextlib.ExitStack() as stack:
        if bnp is not None:
            stack.callback(bnp.detach)
        if autocast:
            played.kinds.append("autocast")
            stack.enter_context(torch.autocast("cpu", torch.bfloat16))
        for _ in range(draw.number(1, 4)):
            _step(draw, model, drawn, bnp, played)
    if bnp is not None:
        for name, layer in bnp.state_dict()["layers"].items():
            played.statistics |= {f"{name}.{key}": value for key, value in (layer["running"] or {}).items()}


def _undone(drawn: Drawn) -> nn.Module:
    """A layer of the usual kind with the same parameters, after what the odd one does to its input."""
    assert drawn.change is not None
    layer = drawn.layer
    base = nn.Conv2d if isinstance(layer, nn.Conv2d) else nn.Linear
    layer.__dict__.pop("forward", None)
    layer.__class__ = base
    return nn.Sequential(drawn.change, layer)


def _step(draw: Draw, model: Branches, drawn: list[Drawn], bnp: trimtab.BNP | None, played: Played) -> None:
    """One step, with something that happens in between, now and then."""

    def maybe(share: float, what: list[changes.Change]) -> None:
        happens, change, index = draw.chance(share), draw.pick(what), draw.number(0, len(drawn) - 1)
        if happens:
            played.kinds.append(change.__name__)
            change(draw, model, drawn[index].layer)

    def maybe_state() -> None:
        if draw.chance(0.06):
            played.kinds.append("state")
            choices = Draw(draw.number(0, 1 << 30))
            if bnp is not None:
                changes.state(choices, bnp)

    maybe(0.06, changes.MODEL)
    maybe_state()
    for _ in range(draw.pick([1, 1, 2])):
        inputs = []
        for each in drawn:
            weight, _ = changes.parameters(each.layer)
            layout, x = tensor(draw, each.shape(), weight.dtype)
            played.kinds.append(f"input {layout}")
            inputs.append(x)
        loss = model(inputs)
        maybe(0.04, changes.MODEL)
        loss.backward(create_graph=draw.chance(0.03))
    maybe(0.06, changes.MODEL)
    maybe(0.25, changes.GRADIENTS)
    maybe_state()
    played.before.append(_gradients(drawn))
    if bnp is not None:
        bnp.step()
    played.gradients.append(_gradients(drawn))
    if draw.chance(0.9):
        model.zero_grad(set_to_none=draw.chance(0.7))


def _gradients(drawn: list[Drawn]) -> list[Gradients]:
    return [[_seen(p) for p in changes.parameters(each.layer)] for each in drawn]


def _seen(parameter: nn.Parameter | None) -> Tensor | str:
    """A copy of a gradient; what can be said of it, if it has no numbers."""
    grad = None if parameter is None else parameter.grad
    if grad is None:
        return "None"
    if grad.is_meta or grad.layout is not torch.strided:
        return f"{grad.layout} {grad.device}"
    return grad.detach().as_subclass(Tensor).clone()
