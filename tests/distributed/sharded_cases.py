"""What the processes of the pool do with weights that are sharded over them, and one process without any of that."""

import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import trimtab
from tests.distributed.cases import Result, all_reduces
from tests.distributed.pool import process_group


class Net(nn.Module):
    """Layers of which processes hold unequal numbers of rows, or none, and parts of groups."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 6, 3, padding=1)
        self.grouped = nn.Conv2d(6, 6, 3, groups=3, bias=False)
        self.grouped_with_bias = nn.Conv2d(6, 6, 1, groups=3)
        self.transposed = nn.ConvTranspose2d(6, 6, 2, stride=2, groups=3)
        self.transposed_without_bias = nn.ConvTranspose2d(6, 5, 1, bias=False)
        self.dense = nn.Linear(80, 5)
        self.last = nn.Sequential(nn.Tanh(), nn.Linear(5, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.grouped_with_bias(self.grouped(self.first(x).tanh()).tanh()).tanh()
        h = self.transposed_without_bias(self.transposed(h).tanh()).tanh()
        return self.last(self.dense(h.flatten(1)))  # type: ignore[no-any-return]


@dataclass
class Settings:
    """One way to train.

    Attributes:
        batches: Samples of each process in each step.
        early: Whether BNP is made before the model is sharded.
        parts: Whether some layers are sharded by themselves, or the model as a whole only.
        micro: In how many parts a batch is taken.
        reduced: Whether each of these reduces its gradients.
        replicas: How many copies of the model there are, each sharded (HSDP).
        spoilt: The step and the process whose loss is infinite.
    """

    batches: list[int]
    steps: int = 20
    dtype: torch.dtype = torch.float64
    early: bool = False
    parts: bool = True
    micro: int = 1
    reduced: bool = True
    replicas: int = 1
    compiled: bool = False
    spoilt: tuple[int, int] | None = None
    shard: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def samples(settings: Settings, step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    count = settings.batches[rank]
    x = torch.randn(count, 2, 4, 4, generator=generator, dtype=torch.float64) * (1 + 2 * rank) + 3 * rank - 1
    y = torch.randn(count, 1, generator=generator, dtype=torch.float64)
    return x.to(settings.dtype), y.to(settings.dtype)


def built(settings: Settings) -> Net:
    torch.manual_seed(0)
    return Net().to(settings.dtype)


def result(model: nn.Module, bnp: trimtab.BNP) -> Result:
    """Whole weights, and averages."""
    found = {}
    for name, value in model.state_dict().items():
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        found[name] = whole.detach().numpy().copy()
    for name, layer in bnp.state_dict()["layers"].items():
        for key, value in (layer["running"] or {}).items():
            found[f"{name} {key}"] = value.numpy().copy()
    return found


def factor(settings: Settings, step: int, ranks: list[int]) -> float:
    return torch.inf if settings.spoilt is not None and settings.spoilt in [(step, rank) for rank in ranks] else 1.0


def alone(settings: Settings) -> Result:
    """One process with the data of all."""
    model = built(settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.5)
    bnp = trimtab.BNP(model, **settings.options).attach(optimizer)
    ranks = list(range(len(settings.batches)))
    for step in range(settings.steps):
        x, y = (torch.cat(parts) for parts in zip(*[samples(settings, step, rank) for rank in ranks], strict=True))
        optimizer.zero_grad()
        (factor(settings, step, ranks) * (model(x) - y).square().sum() / len(x)).backward()
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        optimizer.step()
        undo(settings, step, model, optimizer, before)
    return result(model, bnp)


def undo(settings: Settings, step: int, model: nn.Module, optimizer: Any, before: dict[str, Tensor]) -> None:
    """Take a step back in which nothing was finite, as GradScaler would have left it out."""
    if settings.spoilt is not None and settings.spoilt[0] == step:
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.copy_(before[name])
        optimizer.state.clear()


def shard(model: nn.Module, settings: Settings, size: int) -> None:
    from torch.distributed.fsdp import fully_shard

    if settings.replicas > 1:
        shape = settings.replicas, size // settings.replicas
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cpu", (size,))
    if settings.parts:
        for name in ("first", "grouped", "transposed", "last"):
            fully_shard(model.get_submodule(name), mesh=mesh, **settings.shard)
    fully_shard(model, mesh=mesh, **settings.shard)


def together(rank: int, size: int, store: str, settings: Settings) -> tuple[Result, list[int], list[str]]:
    """The same, in several processes; with the numbers of all_reduces that are not FSDP's, and the warnings."""
    with process_group(rank, size, store), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", trimtab.TrimtabWarning)
        model = built(settings)
        bnp = trimtab.BNP(model, **settings.options) if settings.early else None
        if settings.compiled:
            model.last.compile(backend="aot_eager")
        shard(model, settings, size)
        bnp = trimtab.BNP(model, **settings.options) if bnp is None else bnp
        optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.5)
        bnp.attach(optimizer)
        weight = size / sum(settings.batches)  # FSDP takes the mean over processes
        reduced: list[int] = []
        for step in range(settings.steps):
            optimizer.zero_grad()
            parts = list(
                zip(*[each.tensor_split(settings.micro) for each in samples(settings, step, rank)], strict=True)
            )
            for i, (x, y) in enumerate(parts):
                model.set_requires_gradient_sync(settings.reduced or i == len(parts) - 1)  # type: ignore[operator]
                loss = (model(x) - y).square().sum() * weight
                (factor(settings, step, [rank]) * loss).backward()
            before = {name: value.detach().clone() for name, value in model.named_parameters()}
            with all_reduces() as count:
                optimizer.step()
            reduced = count
            undo(settings, step, model, optimizer, before)
        said = [str(each.message) for each in caught if issubclass(each.category, trimtab.TrimtabWarning)]
        return result(model, bnp), reduced, said
