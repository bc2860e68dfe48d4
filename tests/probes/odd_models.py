"""Models that a probe must not stumble over, and the memory that a probe takes."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trimtab.probes.result import Probe

Batch = dict[str, Tensor]


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(model(batch["x"]).float(), batch["y"])


def a_batch(rows: int = 8, shape: tuple[int, ...] = (4,), dtype: torch.dtype = torch.float32) -> Batch:
    generator = torch.Generator().manual_seed(rows)
    return {"x": torch.randn(rows, *shape, generator=generator).to(dtype), "y": torch.arange(rows) % 3}


class Twice(nn.Module):
    """Calls one module twice and another never; keeps a weight to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.never, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.shared(torch.tanh(self.shared(x)))))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.lstm(x)[0][:, -1])


class Words(nn.Module):
    """Has a sparse gradient."""

    batch: ClassVar[Batch] = {"x": torch.tensor([[0, 1], [3, 3]]), "y": torch.tensor([0, 2])}

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(5, 3, sparse=True), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.words(x).mean(1))


def batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3))


def _plain(bias: bool = True) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4, bias=bias), nn.Tanh(), nn.Linear(4, 3, bias=bias))


def _frozen() -> nn.Module:
    model = nn.Sequential(*batchnorm(), nn.Tanh(), nn.Linear(3, 3))
    model[0].requires_grad_(False)
    model[4].weight.requires_grad_(False)
    return model


def _tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    model[2].weight = model[0].weight
    return model


def _images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, groups=2),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2),
        nn.GroupNorm(2, 6),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(6 * 64, 3),
    ).to(memory_format=torch.channels_last)


def _weight_norm() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 3))


_MAKERS: dict[str, tuple[Callable[[], nn.Module], Batch]] = {
    "no bias": (lambda: _plain(bias=False), a_batch()),
    "frozen layers": (_frozen, a_batch()),
    "tied weights": (_tied, a_batch()),
    "called twice, and never": (Twice, a_batch()),
    "float64": (lambda: batchnorm().double(), a_batch(dtype=torch.float64)),
    "bfloat16": (lambda: _plain().bfloat16(), a_batch(dtype=torch.bfloat16)),
    "one sample": (_plain, a_batch(1)),
    "evaluation mode": (lambda: batchnorm().eval(), a_batch()),
    "convolutions": (_images, a_batch(shape=(2, 4, 4))),
    "weight norm": (_weight_norm, a_batch()),
    "recurrent": (Recurrent, a_batch(shape=(5, 4))),
}
ODD = list(_MAKERS)


def odd_model(name: str) -> tuple[nn.Module, Batch]:
    torch.manual_seed(0)
    make, batch = _MAKERS[name]
    return make(), batch


class Peak(TorchDispatchMode):
    """Counts the bytes of tensors within it that are not known before, and how many there were at most at a time."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known = {t.untyped_storage()._cdata for t in known}
        self._alive: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for storage in (t.untyped_storage() for t in tree_leaves(out) if isinstance(t, Tensor)):
            if storage._cdata not in self._known and storage._cdata not in self._alive:
                self._alive[storage._cdata] = storage.nbytes()
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self._gone, storage._cdata)
        return out

    def _gone(self, key: int) -> None:
        self.now -= self._alive.pop(key)


def peak_memory(probe: Probe[Any], model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> float:
    """The most memory that a probe takes at a time, as a multiple of that of the parameters."""

    def small(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean()

    batch = torch.ones(2, 300)
    state = [t for each in optimizer.state.values() for t in each.values()] if optimizer is not None else []
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    with Peak([*model.parameters(), *gradients, *state, batch]) as peak:
        assert probe(model, small, batch).problem is None
    assert peak.now == 0
    return peak.most / sum(p.nbytes for p in model.parameters())


def deep() -> nn.Module:
    """Has parameters that are large beside what it puts out."""
    return nn.Sequential(*[nn.Linear(300, 300) for _ in range(10)])
