"""Loads a trained network from the folder of a run, or from a file that `trimtab export` wrote."""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.data import fitted
from trimtab.records import EVENTS, RESULTS, RUNS, Evaluated, checked, shown
from trimtab.training import checkpoint, saved_state
from trimtab.training.network import Interface, network
from trimtab.training.run import CHECKPOINT
from trimtab.training.settings import Settings

FORMAT = "trimtab model"
SETTINGS = "settings.yaml"
DECIDED = ("norm_momentum", "norm_eps", "init_scale", "stem")
"""Settings that recipes decide before a network is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun:
    """A trained network, and what is needed to use it: `run.model(run.normalize(images)).argmax(1)`.

    Attributes:
        model: The network with its weights, in eval mode.
        settings: All settings of the run.
        step: How many steps it was trained for.
        evaluated: The last evaluation; None if there was none yet.
        input_shape: The shape of one input.
        classes: How many; 0 in regression.
        labels: The names of the classes, where the data set has them.
        scale: `normalize` divides inputs by this, so that they are from 0 to 1,
        mean: subtracts this, channel by channel (feature by feature, for vectors) or pixel by pixel,
        std: and divides by this.
    """

    model: nn.Module
    settings: Settings
    step: int
    evaluated: Evaluated | None
    input_shape: tuple[int, ...]
    classes: int
    labels: tuple[str, ...]
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalize(self, inputs: Tensor) -> Tensor:
        """Inputs as the data set's files have them (images from 0 to `scale`), as the network wants them.

        Args:
            inputs: One input, or a batch of them, of any type.

        Raises:
            TypeError: If they are not a tensor.
            ValueError: If they have another shape.
        """
        if not isinstance(inputs, Tensor):
            raise TypeError(
                f"inputs must be a tensor, not {shown(inputs)}; torch.as_tensor makes one of arrays and lists."
            )
        if tuple(inputs.shape[-len(self.input_shape) :]) != self.input_shape:
            wanted = f"inputs must have the shape {self.input_shape}, or a dimension of samples before it"
            raise ValueError(f"{wanted}, not {tuple(inputs.shape)}.")
        mean, std = (fitted(torch.tensor(v, device=inputs.device), self.input_shape) for v in (self.mean, self.std))
        return inputs.float().div(self.scale).sub(mean).div(std)


def load_run(path: str | Path, device: torch.device | str = "cpu") -> LoadedRun:
    """The network of a run, as its last checkpoint has it. The data set is not needed.

    Args:
        path: The folder of a run, or a file that `trimtab export` wrote.
        device: The device of the network.

    Raises:
        TypeError: If the path is none.
        ValueError: If there is no run, it cannot be read, or there is no such device.
    """
    path = _path(path)
    return _loaded(path, _saved(path), device)


def _loaded(path: Path, saved: dict[str, Any], device: torch.device | str) -> LoadedRun:
    """The network of what was saved there."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(f"there is no device {str(device)!r} here; use 'cpu'") from error
    try:
        settings = _settings(saved)
        interface = Interface(**{name: saved[name] for name in Interface.__dataclass_fields__})
        evaluated = None if saved["evaluated"] is None else checked(Evaluated, saved["evaluated"])
        if type(saved["step"]) is not int or saved["step"] < 0:
            raise ValueError(f"its step is {shown(saved['step'])}")
        with torch.random.fork_rng([]):  # weights are drawn only to be replaced
            model = network(settings, interface)
    except KeyError as error:
        raise ValueError(f"{path} is damaged: it has no {error}") from error
    except (TypeError, AttributeError, ValueError, IndexError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    try:
        saved_state.same_tensors(saved.get("state_dict"), model.state_dict(), "the network")
    except ValueError as error:
        raise ValueError(f"{path}: what is saved does not fit the network {settings.network}: {error}.") from error
    for name, tensor in saved["state_dict"].items():
        if not tensor.isfinite().all():
            raise ValueError(f"{path}: {name} has values that are not finite, so the training has diverged")
    model.load_state_dict(saved["state_dict"])
    return LoadedRun(
        model=model.to(device).eval(),
        settings=settings,
        step=saved["step"],
        evaluated=evaluated,
        input_shape=interface.input_shape,
        classes=interface.classes,
        labels=interface.labels,
        scale=interface.scale,
        mean=interface.mean,
        std=interface.std,
    )


def export_run(path: str | Path, file: str | Path) -> LoadedRun:
    """Write a run's network into one file, which `torch.load(file, weights_only=True)` reads, and `load_run` too.

    It holds the `state_dict`, and as plain data the settings, what the inputs must look like and the last evaluation.

    Args:
        path: The folder of the run.
        file: The file, whole or not at all; one that is there is replaced.

    Returns:
        What was written.

    Raises:
        ValueError: If the run cannot be loaded, or the file is one of the run's own.
        OSError: If the file cannot be written.
    """
    path, file = _path(path), _path(file)
    if file.resolve() in [(path / name).resolve() for name in (CHECKPOINT, EVENTS, SETTINGS)]:
        raise ValueError(f"{file} is a file of the run itself; name another file")
    saved = _saved(path)
    run = _loaded(path, saved, "cpu")
    checkpoint.save(file, saved)
    return run


def _path(path: str | Path) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"a run is loaded from the path of its folder or file, not from {shown(path)}")
    return Path(path)


def _settings(saved: dict[str, Any]) -> Settings:
    settings = saved_state.saved_settings(saved)
    if missing := [name for name in DECIDED if settings[name] is None]:
        raise ValueError(f"its settings do not say {', '.join(missing)}")
    return Settings(**settings)


def _saved(path: Path) -> dict[str, Any]:
    """What was saved, in the form in which it is exported."""
    file = path / CHECKPOINT if path.is_dir() else path
    if not file.is_file():
        raise ValueError(_nothing(path))
    content = checkpoint.load(file, torch.device("cpu"))
    if content.get("format") == FORMAT:
        return {name: value for name, value in content.items() if name != "schema"}
    if "session" not in content:
        raise ValueError(f"{file} is neither a checkpoint nor a file that trimtab export wrote.")
    try:
        return {
            "format": FORMAT,
            "state_dict": content["session"]["model"],
            "settings": content["settings"],
            "step": content["session"]["step"],
            "evaluated": content["evaluations"][-1] if content["evaluations"] else None,
            **content["interface"],
        }
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged: it is not what a run saves") from error


def _nothing(path: Path) -> str:
    """Why there is nothing to load."""
    settings = path / SETTINGS
    if (path / RESULTS).exists():
        again = shlex.join(["trimtab", "train", "--config", str(path / RUNS / "NAME" / SETTINGS), "--out", "NEW"])
        return f"{path} is a comparison, which keeps no checkpoints of its runs; train one of them again with: {again}"
    if not settings.exists():
        if (path / EVENTS).exists():
            return f"{path} has the records of a run, but neither its checkpoint nor its {SETTINGS}; train it again"
        return f"there is no run in {path}"
    again = shlex.join(["trimtab", "train", "--config", str(settings), "--out", "NEW"])
    why = "a comparison removes those of its runs when they are done, and one that diverges may have none"
    return f"{path} has no checkpoint ({why}); train it again with: {again}"
