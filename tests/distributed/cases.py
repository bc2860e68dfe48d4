"""What the processes of the pool do, and what one process does with the data of all of them."""

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import trimtab
from tests.distributed.pool import process_group

Result = dict[str, np.ndarray]


class Net(nn.Module):
    """A convolution, a grouped one without bias, a transposed one, dense layers, and a layer for some samples only."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.grouped = nn.Conv2d(4, 4, 3, groups=2, bias=False)
        self.transposed = nn.ConvTranspose2d(4, 3, 2, stride=2)
        self.dense = nn.Linear(48, 6)
        self.some = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor, chosen: Tensor | None) -> Tensor:
        """`chosen` samples go through the layer for some; None: all."""
        h = self.transposed(self.grouped(self.first(x).tanh()).tanh()).tanh()
        h = self.dense(h.flatten(1)).tanh()
        if chosen is None:
            h = h + self.some(h)
        elif bool(chosen.any()):
            h = h.index_add(0, chosen.nonzero().flatten(), self.some(h[chosen]))
        return self.last(h)  # type: ignore[no-any-return]


@dataclass
class Settings:
    """One way to train.

    Attributes:
        batches: Samples of each process in each step.
        steps: How many steps each process makes.
        wrapped: Whether BNP is made for the wrapped model.
        late: Whether BNP is made before the group of processes.
        micro: In how many parts a batch is taken, all but the last without synchronization.
        unused: Processes that do not use the layer for some samples.
        spoilt: The step and the process whose input has an infinity.
    """

    batches: list[int]
    steps: list[int]
    dtype: torch.dtype = torch.float64
    wrapped: bool = False
    late: bool = False
    micro: int = 1
    unused: tuple[int, ...] = ()
    zero: bool = False
    compiled: bool = False
    scaler: bool = False
    join: bool = False
    spoilt: tuple[int, int] | None = None
    ddp: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def samples(settings: Settings, step: int, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets, and which samples go through the layer for some: those of each process from their own data."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    count = settings.batches[rank]
    x = torch.randn(count, 2, 4, 4, generator=generator, dtype=torch.float64) * (1 + 2 * rank) + 3 * rank - 1
    y = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    if settings.spoilt == (step, rank):
        x[0, 0, 0, 0] = torch.inf
    return x.to(settings.dtype), y.to(settings.dtype), torch.full((count,), rank not in settings.unused)


def built(settings: Settings) -> Net:
    torch.manual_seed(0)
    return Net().to(settings.dtype)


def result(model: nn.Module, bnp: trimtab.BNP) -> Result:
    """Weights and averages."""
    found = {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}
    for name, layer in bnp.state_dict()["layers"].items():
        for key, value in (layer["running"] or {}).items():
            found[f"{name} {key}"] = value.numpy().copy()
    return found


def alone(settings: Settings) -> Result:
    """One process with the data of all."""
    model = built(settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.5)
    bnp = trimtab.BNP(model, **settings.options).attach(optimizer)
    for step in range(max(settings.steps)):
        ranks = [rank for rank, steps in enumerate(settings.steps) if step < steps]
        x, y, chosen = (
            torch.cat(parts) for parts in zip(*[samples(settings, step, rank) for rank in ranks], strict=True)
        )
        optimizer.zero_grad()
        # DDP divides by the number of all processes, of those that have ended, too.
        share = len(ranks) / len(settings.steps) if settings.join else 1
        (share * (model(x, None if settings.compiled else chosen) - y).square().sum() / len(x)).backward()
        if settings.spoilt is None or settings.spoilt[0] != step:
            optimizer.step()
    return result(model, bnp)


def together(rank: int, size: int, store: str, settings: Settings) -> tuple[Result, list[int], list[str]]:
    """The same, in several processes; with the numbers of all_reduces that are not DDP's, and the warnings."""
    model = built(settings)
    bnp = trimtab.BNP(model, **settings.options) if settings.late else None
    with process_group(rank, size, store), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", trimtab.TrimtabWarning)
        if bnp is None and not settings.wrapped:
            bnp = trimtab.BNP(model, **settings.options)
        compiled = torch.compile(model, backend="aot_eager") if settings.compiled else model
        wrapped = DistributedDataParallel(compiled, **settings.ddp)
        if bnp is None:
            bnp = trimtab.BNP(wrapped, **settings.options)
        if settings.zero:
            from torch.distributed.optim import ZeroRedundancyOptimizer  # which warns when it is imported

            optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.005, momentum=0.5)
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.5)
        bnp.attach(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000, enabled=settings.scaler)
        joinables = [wrapped, bnp, *([optimizer] if settings.zero else [])]
        with all_reduces() as reduced, Join(joinables) if settings.join else contextlib.nullcontext():
            for step in range(settings.steps[rank]):
                optimizer.zero_grad()
                x, y, chosen = samples(settings, step, rank)
                total = sum(settings.batches) if not settings.join else None
                parts = list(zip(*[each.tensor_split(settings.micro) for each in (x, y, chosen)], strict=True))
                for i, (x, y, chosen) in enumerate(parts):
                    with wrapped.no_sync() if i < len(parts) - 1 else contextlib.nullcontext():
                        # DDP takes the mean over processes, so that each has to give its share of the sum.
                        weight = size / total if total is not None else 1 / len(x)
                        output = wrapped(x, None if settings.compiled else chosen)
                        scaler.scale((output - y).square().sum() * weight).backward()
                scaler.step(optimizer)
                scaler.update(8.0 if settings.scaler else None)
        said = [str(each.message) for each in caught if issubclass(each.category, trimtab.TrimtabWarning)]
        return result(model, bnp), reduced, said


@contextlib.contextmanager
def all_reduces() -> Iterator[list[int]]:
    """Gives the number of all_reduces of one or two numbers within, and of those of more."""
    count, original = [0, 0], torch.distributed.all_reduce

    def counting(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        count[tensor.numel() > 2] += 1
        return original(tensor, *args, **kwargs)

    torch.distributed.all_reduce = counting
    try:
        yield count
    finally:
        torch.distributed.all_reduce = original


def small_step(bnp: trimtab.BNP, model: nn.Module, x: Tensor) -> None:
    model.zero_grad()
    model(x).square().mean().backward()
    bnp.step()


def different_models(rank: int, size: int, store: str, kind: str) -> str:
    """What is said where the processes do not observe the same layers."""
    torch.manual_seed(0)
    width = 5 if kind == "other sizes" and rank else 4
    model = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2))
    if kind == "more layers" and rank:
        model.append(nn.Linear(2, 2))
    if kind == "other names" and rank:
        model = nn.Sequential(*model[:2], nn.Identity(), model[2])
    bnp = trimtab.BNP(model, rho=0.9 if kind == "other options" and rank else 0.99)
    with process_group(rank, size, store):
        try:
            small_step(bnp, model, torch.randn(5, 3))
        except RuntimeError as error:
            return str(error)
    return "nothing"


def not_finite(rank: int, size: int, store: str) -> tuple[list[int], list[float]]:
    """The numbers of steps that count and that were kept out, and the averages; one process has a NaN once."""
    torch.manual_seed(rank)
    model = nn.Linear(3, 2)
    bnp = trimtab.BNP(model)
    with process_group(rank, size, store), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(3):
            x = torch.randn(5, 3)
            if rank == 1 and step == 1:
                x[0, 0] = torch.nan
            small_step(bnp, model, x)
        running = bnp.state_dict()["layers"][""]["running"]
    return [int(running["steps"]), int(running["skipped"])], running["mean"].tolist()


def nothing_seen(rank: int, size: int, store: str) -> tuple[bool, list[str]]:
    """Whether a gradient that no process has rows for is left as it is."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    bnp = trimtab.BNP(model)
    with process_group(rank, size, store), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gradient = torch.randn(3, 3)
        model[0].weight.grad = gradient.clone()
        model[1](torch.randn(4, 3)).sum().backward()
        bnp.step()
        return torch.equal(model[0].weight.grad, gradient), [str(each.message) for each in caught]


def compiled_step(rank: int, size: int, store: str) -> list[list[float]]:
    """The gradients after a step that is compiled as one graph, with the exchange in it, and after one that is not."""
    gradients = []
    with process_group(rank, size, store):
        for compile_it in (True, False):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
            bnp = trimtab.BNP(model)
            step = torch.compile(bnp.step, fullgraph=True, backend="aot_eager") if compile_it else bnp.step
            whole = torch.compile(model, backend="aot_eager")
            for i in range(3):
                torch.manual_seed(10 * i + rank)
                model.zero_grad()
                whole(torch.randn(5, 3) + rank).square().mean().backward()
                for parameter in model.parameters():
                    torch.distributed.all_reduce(parameter.grad)
                step()
            gradients.append([float(value) for each in model.parameters() for value in each.grad.flatten()])
    return gradients


def wide_layer_unseen(rank: int, size: int, store: str) -> list[float]:
    """The means of a layer that one process does not use and that is wider than all the others."""
    model = nn.ModuleDict({"narrow": nn.Linear(3, 2), "wide": nn.Linear(1000, 2)})
    bnp = trimtab.BNP(model)
    with process_group(rank, size, store):
        torch.manual_seed(rank)
        loss = model["narrow"](torch.randn(4, 3)).sum()
        if rank:
            loss = loss + model["wide"](torch.randn(4, 1000)).sum()
        loss.backward()
        if not rank:
            model["wide"].weight.grad = torch.zeros(2, 1000)
        bnp.step()
        found: list[float] = bnp.state_dict()["layers"]["wide"]["running"]["mean"].tolist()
    return found


def another_group(rank: int, size: int, store: str) -> list[float]:
    """The means after steps in two groups, where in the second one a process has a BNP that has not made a step."""
    torch.manual_seed(rank)
    model = nn.Linear(3, 2)
    bnp = trimtab.BNP(model)
    for i in range(2):
        with process_group(rank, size, f"{store} {i}"):
            if i == 1 and rank == 1:
                state = bnp.state_dict()
                bnp.detach()
                bnp = trimtab.BNP(model)
                bnp.load_state_dict(state)
            small_step(bnp, model, torch.randn(5, 3))
    found: list[float] = bnp.state_dict()["layers"][""]["running"]["mean"].tolist()
    return found


def without_memory(rank: int, size: int, store: str) -> tuple[list[int], list[int]]:
    """The numbers of exchanges of a model on the meta device, and the shape of its gradient."""
    with process_group(rank, size, store), all_reduces() as count:
        model = nn.Linear(3, 2, device="meta")
        small_step(trimtab.BNP(model), model, torch.randn(5, 3, device="meta"))
        assert model.weight.grad is not None
        return count, list(model.weight.grad.shape)


def part_of_the_processes(rank: int, size: int, store: str) -> list[bool]:
    """Whether BNP finds the group that DistributedDataParallel was given, wherever that is in the model."""
    with process_group(rank, size, store):
        group = torch.distributed.new_group([1, 2])
        if rank == 0:
            return []
        wrapped = DistributedDataParallel(nn.Linear(3, 2), process_group=group)
        models = wrapped, nn.Sequential(wrapped, nn.Tanh()), torch.compile(wrapped, backend="eager")
        return [trimtab.BNP(model).join_process_group is group for model in models]


def two_bnps(rank: int, size: int, store: str, names: str) -> list[str]:
    """What is said where two BNPs of layers of one size make their steps in another order in one process, later on."""
    said = []
    models = [nn.ModuleDict({name: nn.Linear(3, 2)}) for name in names]
    bnps = [trimtab.BNP(model) for model in models]
    with process_group(rank, size, store):
        for step in range(2):
            for name, model in zip(names, models, strict=True):
                model[name](torch.randn(4, 3)).sum().backward()
            for bnp in reversed(bnps) if step and rank else bnps:
                try:
                    bnp.step()
                except RuntimeError as error:
                    said.append(f"{step}: {error}")
    return said


def changed_before_join(rank: int, size: int, store: str) -> Result:
    """A layer is added, and then one process has no data at all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    bnp = trimtab.BNP(model)
    with process_group(rank, size, store):
        small_step(bnp, model, torch.randn(5, 3))
        model.append(nn.Linear(4, 2))
        wrapped = DistributedDataParallel(model)
        with Join([wrapped, bnp]):
            for _ in range(3 * rank):
                small_step(bnp, wrapped, torch.randn(5, 3))
        return {name: value for name, value in result(model, bnp).items() if " " in name}


def die(rank: int, size: int, store: str) -> str:
    """One process ends without a word, and the other makes a step."""
    model = nn.Linear(3, 2)
    bnp = trimtab.BNP(model)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=5)
    )
    small_step(bnp, model, torch.randn(5, 3))
    if rank == 1:
        os._exit(1)
    small_step(bnp, model, torch.randn(5, 3))
    return "nothing"
