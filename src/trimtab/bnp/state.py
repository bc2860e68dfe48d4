"""Saving and taking up what BNP knows, as a dictionary of tensors and numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.bnp.algorithm.averages import RunningAverage
from trimtab.bnp.algorithm.moments import Moments, Rows, compute_dtype
from trimtab.bnp.layer_shapes import column_shapes
from trimtab.bnp.options import Options
from trimtab.bnp.rows.layer import ObservedLayer

VERSION = 1
# Options that decide what the saved numbers mean. The others may differ between saving and loading.
_MEANING = ("debias", "spatial")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LARGEST = 2**62


def save(layers: Mapping[str, ObservedLayer], options: Options) -> dict[str, Any]:
    """The state of all layers, by name."""
    saved = {name: _save_layer(layer) for name, layer in layers.items()}
    return {"version": VERSION, "options": asdict(options), "layers": saved}


def load(saved: Mapping[str, Any], layers: Mapping[str, ObservedLayer], options: Options) -> None:
    """Give the layers a saved state: all of them or, if something does not fit or has no meaning, none.

    Raises:
        ValueError: If there is such a thing; it is named.
    """
    if not isinstance(saved, Mapping) or not {"version", "options", "layers"} <= saved.keys():
        raise ValueError("This is not a state of BNP: it has no version, options and layers.")
    if type(saved["version"]) is not int or saved["version"] != VERSION:
        raise ValueError(f"The state has version {_shown(saved['version'])}; this trimtab reads version {VERSION}.")
    if not isinstance(saved["options"], Mapping) or not isinstance(saved["layers"], Mapping):
        raise ValueError("The state is damaged: its options and layers are not dictionaries.")
    for name in _MEANING:
        theirs, ours = saved["options"].get(name), getattr(options, name)
        if type(theirs) is not type(ours) or theirs != ours:
            raise ValueError(f"The state was saved with {name}={_shown(theirs)}, but this BNP has {name}={ours!r}.")
    for name in layers.keys() - saved["layers"].keys():
        raise ValueError(f"The state has nothing for layer {name!r}; is it from another model?")
    for name in saved["layers"].keys() - layers.keys():
        raise ValueError(f"The state has a layer {name!r} that this model does not have or BNP skips.")
    loaded = [(layer, _load_layer(layer, options, saved["layers"][name])) for name, layer in layers.items()]
    for layer, parts in loaded:
        layer.restore(*parts)


def _save_layer(layer: ObservedLayer) -> dict[str, Any]:
    saved: dict[str, Any] = {"running": None, "pending": None, "handed_out": False}
    running = layer.running
    if running is None and layer.columns.numel():  # so that torch.distributed.checkpoint has a place to load to
        running = layer.new_averages()
    if running is not None:
        saved["running"] = {name: value.clone() for name, value in running.tensors().items()}
    if (pending := layer.pending()) is not None:
        saved["handed_out"] = pending is layer.returned()
        rows = pending.rows()
        saved["pending"] = {
            "count": int(rows.moments.count),
            "mean": rows.moments.mean.clone(),
            "variance": rows.moments.variance.clone(),
            "samples": int(rows.samples),
            "outputs": int(rows.positions),
            "zeros": int(rows.zeros),
        }
    return saved


def _load_layer(
    layer: ObservedLayer, options: Options, saved: Any
) -> tuple[RunningAverage | None, Rows | None, Rows | None]:
    """The parts of a layer's state, each looked at before it is believed."""
    entry = _Entry(layer, saved)
    entry.need("running", "pending", "handed_out")
    returned = entry.saved["handed_out"]
    if not isinstance(returned, bool):
        raise entry.damaged("handed_out", f"is {_shown(returned)} and not True or False")
    running, pending = _load_averages(entry, options), _load_rows(entry)
    if running is not None and pending is not None and running.mean.shape != pending.moments.shape:
        shapes = f"{tuple(pending.moments.shape)} and not {tuple(running.mean.shape)} as in 'running'"
        raise entry.damaged("pending.mean", f"has shape {shapes}")
    return (running, None, pending) if returned else (running, pending, None)


def _load_averages(entry: "_Entry", options: Options) -> RunningAverage | None:
    if (part := entry.part("running", RunningAverage.NAMES)) is None:
        return None
    mean, variance = part.moments()
    running = RunningAverage(mean, debias=options.debias)
    weight = part.tensor("weight", running.weight)
    if not 0 <= float(weight) <= 1:
        raise part.damaged("weight", f"is {float(weight)} and not between 0 and 1")
    counts = {name: part.tensor(name, getattr(running, name)) for name in ("steps", "skipped")}
    for name, count in counts.items():
        if not 0 <= int(count) <= _LARGEST:
            raise part.damaged(name, f"is {int(count)}, but a number of steps is from 0 to {_LARGEST}")
    loaded = {"mean": mean, "variance": variance, "weight": weight, **counts}
    before = running.tensors()
    if not mean.is_meta and all(torch.equal(value.to(before[name]), before[name]) for name, value in loaded.items()):
        return None  # as before the first step
    # Into what is there, so that all is of the type and as dense in memory as it has to be.
    for name, value in loaded.items():
        getattr(running, name).copy_(value)
    return running


def _load_rows(entry: "_Entry") -> Rows | None:
    if (part := entry.part("pending", ("count", "mean", "variance", "samples", "outputs", "zeros"))) is None:
        return None
    count, samples, outputs = (part.number(name, at_least=1) for name in ("count", "samples", "outputs"))
    zeros = part.number("zeros", at_least=None)  # there are fewer than none where a stride leaves inputs out
    return Rows(Moments(count, *part.moments()), samples, outputs, zeros)


class _Entry:
    """A dictionary in the state of a layer, that need not be one."""

    def __init__(self, layer: ObservedLayer, saved: Any, path: str = "") -> None:
        self.layer, self.path = layer, path
        if not isinstance(saved, Mapping):
            raise self.damaged("", f"is a {type(saved).__name__} and not a dictionary")
        self.saved = saved

    def damaged(self, name: str, why: str) -> ValueError:
        """The error that says what is wrong with a field."""
        field = ".".join(part for part in (self.path, name) if part)
        what = f"{field!r} of layer {self.layer.name!r}" if field else f"the entry of layer {self.layer.name!r}"
        return ValueError(f"The state is damaged, and nothing of it was loaded: {what} {why}.")

    def need(self, *names: str) -> None:
        """Refuse fields that are missing or unknown."""
        for name in names:
            if name not in self.saved:
                raise self.damaged(name, "is missing")
        for name in self.saved:
            if name not in names:
                raise self.damaged(str(name), "is not a field of BNP's states")

    def part(self, name: str, fields: Sequence[str]) -> "_Entry | None":
        """A dictionary within, with these fields; None if nothing was saved there."""
        if self.saved[name] is None:
            return None
        part = _Entry(self.layer, self.saved[name], name)
        part.need(*fields)
        return part

    def number(self, name: str, *, at_least: int | None) -> int:
        """A whole number."""
        value = self.saved[name]
        if type(value) is not int or not -_LARGEST <= value <= _LARGEST:
            raise self.damaged(name, f"is {_shown(value)} and not a whole number")
        if at_least is not None and value < at_least:
            raise self.damaged(name, f"is {value}, but rows that wait have at least {at_least}")
        return value

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the layer's columns: copies on its device."""
        mean = self._columns("mean")
        variance = self._columns("variance").to(mean.dtype)  # whoever has changed a state may have changed types
        if variance.shape != mean.shape:
            raise self.damaged("variance", f"has shape {tuple(variance.shape)} and the mean has {tuple(mean.shape)}")
        if not variance.is_meta:
            if bool((variance < 0).any()):
                raise self.damaged("variance", "has negative entries")
            if not bool((mean.square() + variance).isfinite().all()):
                raise self.damaged("mean", f"has entries whose squares are too large for {_name(mean.dtype)}")
        return mean, variance

    def tensor(self, name: str, like: Tensor | None = None) -> Tensor:
        """A tensor of finite numbers, of the shape of `like` and as it a floating-point or an integer one."""
        value = self.saved[name]
        if not isinstance(value, Tensor):
            raise self.damaged(name, f"is {_shown(value)} and not a tensor")
        if value.is_nested or value.layout is not torch.strided:
            kind = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
            raise self.damaged(name, f"is a {kind} tensor and not a dense one")
        if value.is_meta:
            raise self.damaged(name, "is on the meta device and has no numbers")
        counts = like is not None and not like.is_floating_point()
        if value.dtype is not torch.int64 if counts else value.dtype not in _FLOATS:
            wanted = "int64" if counts else "a floating-point type"
            raise self.damaged(name, f"is of type {_name(value.dtype)} and not {wanted}")
        if like is not None and value.shape != like.shape:
            raise self.damaged(name, f"has shape {tuple(value.shape)} and not {tuple(like.shape)}")
        try:
            finite = bool(value.isfinite().all())
        except RuntimeError as error:  # of tensors that stand for others, as FakeTensor does
            raise self.damaged(name, f"is {_shown(value)}, which has no numbers") from error
        if not finite:
            raise self.damaged(name, "has entries that are infinite or NaN")
        return value.detach()

    def _columns(self, name: str) -> Tensor:
        saved, weight = self.tensor(name), self.layer.weight
        if weight is None or isinstance(weight, nn.UninitializedParameter):
            return saved.clone()
        shape = self.layer.shape(weight)
        if shape is None or saved.shape not in column_shapes(weight, shape):
            raise ValueError(
                f"The state of layer {self.layer.name!r} is for columns of shape {tuple(saved.shape)}, but the "
                f"layer's weight has shape {tuple(weight.shape)}; is it from another model?"
            )
        if not bool(saved.to(compute_dtype(weight)).isfinite().all()):
            raise self.damaged(name, f"has entries that are too large for the layer's {_name(compute_dtype(weight))}")
        return saved.to(weight.device, compute_dtype(saved), copy=True)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shown(value: object) -> str:
    """A value in few words."""
    return f"a {type(value).__name__}" if isinstance(value, Tensor | list | tuple | dict) else f"{value!r:.40}"
