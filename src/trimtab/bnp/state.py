"""Saving and taking up what BNP knows, as a dictionary of tensors and numbers."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from trimtab.bnp.observer import Observer
from trimtab.bnp.options import Options
from trimtab.bnp.statistics import Moments, Rows, RunningAverage

VERSION = 1
# Options that decide what the saved numbers mean. The others may differ between saving and loading.
_MEANING = ("debias", "spatial")


def save(observers: Mapping[str, Observer], options: Options) -> dict[str, Any]:
    """The state of all layers, by name."""
    layers = {name: _save_layer(observer) for name, observer in observers.items()}
    return {"version": VERSION, "options": asdict(options), "layers": layers}


def load(saved: Mapping[str, Any], observers: Mapping[str, Observer], options: Options) -> None:
    """Give the layers a saved state: all of them or, if something does not fit, none."""
    if not isinstance(saved, Mapping) or not {"version", "options", "layers"} <= saved.keys():
        raise ValueError("This is not a state of BNP: it has no version, options and layers.")
    if saved["version"] != VERSION:
        raise ValueError(f"The state has version {saved['version']!r}; this trimtab reads version {VERSION}.")
    if not isinstance(saved["options"], Mapping) or not isinstance(saved["layers"], Mapping):
        raise ValueError("The state is damaged: its options and layers are not dictionaries.")
    for name in _MEANING:
        theirs, ours = saved["options"].get(name), getattr(options, name)
        if theirs != ours:
            raise ValueError(f"The state was saved with {name}={theirs!r}, but this BNP has {name}={ours!r}.")
    for name in observers.keys() - saved["layers"].keys():
        raise ValueError(f"The state has nothing for layer {name!r}; is it from another model?")
    for name in saved["layers"].keys() - observers.keys():
        raise ValueError(f"The state has a layer {name!r} that this model does not have or BNP skips.")
    loaded = [(observer, _load_layer(observer, saved["layers"][name])) for name, observer in observers.items()]
    for observer, parts in loaded:
        observer.restore(*parts)


def _save_layer(observer: Observer) -> dict[str, Any]:
    layer: dict[str, Any] = {"running": None, "pending": None, "handed_out": False}
    if observer.running is not None:
        layer["running"] = {name: value.clone() for name, value in observer.running.tensors().items()}
    if (rows := observer.pending) is not None:
        layer["handed_out"] = rows is observer.handed_out
        layer["pending"] = {
            "count": int(rows.moments.count),
            "mean": rows.moments.mean.clone(),
            "variance": rows.moments.variance.clone(),
            "samples": int(rows.samples),
            "outputs": int(rows.outputs),
            "zeros": int(rows.zeros),
        }
    return layer


def _load_layer(observer: Observer, saved: Mapping[str, Any]) -> tuple[RunningAverage | None, Rows | None, Rows | None]:
    running: RunningAverage | None = None
    pending: Rows | None = None
    try:
        if (averages := saved["running"]) is not None:
            mean, variance = (_columns(observer, averages[name]) for name in ("mean", "variance"))
            running = RunningAverage(mean, debias=observer.options.debias)
            # Into what is there, so that all is of the type and as dense in memory as it has to be.
            for name, value in {**averages, "mean": mean, "variance": variance}.items():
                ours = running.tensors()[name]
                if value.shape != ours.shape:
                    raise TypeError(f"{name} is of shape {tuple(value.shape)} and not {tuple(ours.shape)}")
                ours.copy_(value)
        if (rows := saved["pending"]) is not None:
            moments = Moments(int(rows["count"]), *(_columns(observer, rows[name]) for name in ("mean", "variance")))
            pending = Rows(moments, int(rows["samples"]), int(rows["outputs"]), int(rows["zeros"]))
            if min(moments.count, pending.samples, pending.outputs) < 1:
                raise TypeError("pending rows without a number")
        handed_out = bool(saved["handed_out"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"The state of layer {observer.name!r} is damaged: {error!r}.") from error
    return (running, None, pending) if handed_out else (running, pending, None)


def _columns(observer: Observer, saved: Tensor) -> Tensor:
    """A copy on the layer's device, if its shape is that of the layer's columns."""
    weight = observer.weight
    if weight is None or isinstance(weight, nn.UninitializedParameter):
        return saved.clone()
    groups, _, inputs, sites = observer.units(weight.detach().contiguous()).shape
    columns = groups * inputs
    if tuple(saved.shape) not in {(columns,), (columns, sites), (columns, *weight.shape[2:])}:
        raise ValueError(
            f"The state of layer {observer.name!r} is for columns of shape {tuple(saved.shape)}, but the layer has "
            f"{columns} inputs; is it from another model?"
        )
    return saved.to(weight.device, copy=True)
