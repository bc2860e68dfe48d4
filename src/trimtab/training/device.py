"""The device that a run is trained on."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from trimtab.records import machine


def hardware(device: torch.device) -> str:
    """The name of the hardware, in a few words."""
    return f"{torch.cuda.get_device_name(device)}, {machine()}" if device.type == "cuda" else machine()


def device_named(name: str | None) -> torch.device:
    """The device of that name; without a name a GPU if there is one, else the CPU."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"there is no device {name!r}; use cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"training on {name!r} is not supported; use cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; use --device cpu")
    return device


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """Let torch compute with so many threads meanwhile; None: with as many as it has."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
