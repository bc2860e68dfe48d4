"""A training and some measurements, done while trimtab does not find a name in torch.

`python -m tests.missing_names NAME` prints the numbers that come out as JSON; without a name nothing is missing.
A new use of torch's private names gets a function in `SCENARIOS`, unless one of these comes by it already.
"""

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

ROOMS = ("bnp", "norms", "theory.from_model", "probes")


@contextmanager
def missing(name: str) -> Iterator[None]:
    """Within, torch does not have an attribute of this dotted name, or a module of this name is not found.

    Afterwards it is there again, since torch itself needs it; trimtab looks names up when it is imported.
    """
    holder_name, _, own = name.rpartition(".")
    holder: Any = torch
    for part in holder_name.split(".")[1:]:
        holder = getattr(holder, part)
    find_spec = importlib.util.find_spec
    value = getattr(holder, own, None)
    inherited = value is not None and own not in vars(holder)
    importlib.util.find_spec = lambda module, package=None: None if module == name else find_spec(module, package)
    if inherited:
        setattr(holder, own, None)
    elif value is not None:
        delattr(holder, own)
    try:
        yield
    finally:
        importlib.util.find_spec = find_spec
        if inherited:
            delattr(holder, own)
        elif value is not None:
            setattr(holder, own, value)


class Net(nn.Module):
    """With normalization, weight normalization, a view that is changed in place, and a part that is computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.rows = nn.Linear(16, 16)
        self.again = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh())
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.rows(self.first(x).flatten(2)).relu_()
        hidden: Tensor = checkpoint(self.again, rows, use_reentrant=False)
        return self.last(hidden)  # type: ignore[no-any-return]


def made() -> tuple[Net, Callable[[nn.Module, Any], Tensor], tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    batch = torch.randn(12, 2, 4, 4) + 0.5, torch.arange(12) % 3
    return Net(), lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]), batch


def training() -> Any:
    """With BNP by its plain and by its fast operations, in two parts of a batch."""
    import trimtab
    from trimtab.norms import gamma_decay

    found = {}
    for fast in (False, True):
        model, loss_fn, (x, y) = made()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        bnp = trimtab.BNP(model, fast=fast).attach(optimizer)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            for part in (slice(6), slice(6, 12)):
                loss = loss_fn(model, (x[part], y[part])) + gamma_decay(model, 0.1)
                loss.backward()
                losses.append(loss.item())
            optimizer.step()
        bnp.detach()
        found[str(fast)] = [losses, [p.detach().norm().item() for p in model.parameters()]]
    return found


def measuring() -> Any:
    """What probes say, each of them."""
    from trimtab import probes

    model, loss_fn, batch = made()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    several: list[probes.Probe[Any]] = [
        probes.Landscape(optimizer=optimizer, multiples=(1.0, 2.0)),
        probes.CovariateShift(optimizer=optimizer),
        probes.Conditioning(),
        probes.Activations(bins=3),
        probes.BatchNoise(),
        probes.Spectrum(),
    ]
    return {probe.name: probe(model, loss_fn, batch).to_dict() for probe in several}


def many_tensors() -> Any:
    """What probes do on a GPU with many tensors at once."""
    from trimtab import _torch

    a, b = [torch.arange(4.0), torch.ones(2, 3)], [torch.full((4,), 2.0), torch.zeros(2, 3)]
    targets = [torch.empty_like(x) for x in a]
    _torch.copy_all_(targets, a)
    _torch.add_all_(targets, b, alpha=3.0)
    tensors = [*_torch.subtract_all(a, b), *_torch.multiply_all(a, b), *targets, *_torch.norms(a)]
    return [[str(each.dtype), each.tolist()] for each in tensors]


def predicting() -> Any:
    import trimtab

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    return trimtab.predict(model, (2, 4, 4)).to_dict()


SCENARIOS = (training, measuring, many_tensors, predicting)


def main() -> None:
    for name in sys.argv[1:]:
        with missing(name):
            for room in ROOMS:
                importlib.import_module(f"trimtab.{room}")
    print(json.dumps({scenario.__name__: scenario() for scenario in SCENARIOS}))  # noqa: T201


if __name__ == "__main__":
    main()
