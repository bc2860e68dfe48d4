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
        few: Whether layers have so few rows that a process has none of them.
    """

    batches: list[int]
    steps: int = 50
    dtype: torch.dtype = torch.float64
    early: bool = False
    parts: bool = True
    micro: int = 1
    reduced: bool = True
    replicas: int = 1
    compiled: bool = False
    spoilt: tuple[int, int] | None = None
    few: bool = False
    shard: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def samples(settings: Settings, step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    count = settings.batches[rank]
    x = torch.randn(count, 2, 4, 4, generator=generator, dtype=torch.float64) * (1 + 2 * rank) + 3 * rank - 1
    y = torch.randn(count, 1, generator=generator, dtype=torch.float64)
    return x.to(settings.dtype), y.to(settings.dtype)


def built(settings: Settings) -> nn.Module:
    torch.manual_seed(0)
    return (few_rows() if settings.few else Net()).to(settings.dtype)


def few_rows() -> nn.Module:
    """Layers of all kinds with up to four rows."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 1, groups=2),
        nn.Tanh(),
        nn.Conv2d(4, 1, 3, bias=False),
        nn.ConvTranspose2d(1, 2, 2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(18, 1),
    )


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
    if settings.parts and not settings.few:
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
            model.get_submodule("last").compile(backend="aot_eager")
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


def small(size: int, **options: Any) -> tuple[nn.Sequential, Any, trimtab.BNP]:
    """A sharded model, its optimizer, and the BNP that is attached."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, trimtab.BNP(model).attach(optimizer)


def pending(bnp: trimtab.BNP) -> list[int]:
    """How many rows wait in each layer."""
    entries = bnp.state_dict()["layers"].values()
    return [0 if entry["pending"] is None else entry["pending"]["count"] for entry in entries]


def mixed_precision(rank: int, size: int, store: str, reduced: bool) -> list[list[int]]:
    """The rows that wait after three backwards, in two steps; and after one that was dropped and another one."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    found = []
    with process_group(rank, size, store):
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model, optimizer, bnp = small(size, mp_policy=policy)
        for _ in range(2):
            optimizer.zero_grad()
            for i in range(3):
                model.set_requires_gradient_sync(reduced or i == 2)  # type: ignore[operator]
                model(torch.randn(6, 3)).float().sum().backward()
            found.append(pending(bnp))
            optimizer.step()
        model(torch.randn(6, 3)).float().sum().backward()
        optimizer.zero_grad()
        model(torch.randn(4, 3)).float().sum().backward()
        found.append(pending(bnp))
    return found


def part_of_model(rank: int, size: int, store: str, reduced: bool) -> list[list[int]]:
    """The rows of three backwards that wait where BNP's model is a part of the one that is sharded."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with process_group(rank, size, store):
        model = nn.Sequential(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), nn.Linear(5, 2))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        fully_shard(model, mesh=init_device_mesh("cpu", (size,)), mp_policy=policy)
        bnp, found = trimtab.BNP(model[0]), []
        for _ in range(2):
            for i in range(3):
                model.set_requires_gradient_sync(reduced or i == 2)  # type: ignore[operator]
                model(torch.randn(6, 3)).float().sum().backward()
            found.append(pending(bnp))
            bnp.step()
            model.zero_grad()
    return found


def probed(rank: int, size: int, store: str, gathered: bool) -> list[str | None]:
    """What a probe says of a sharded model, which is trained before and after."""
    from trimtab.probes import Activations, Monitor

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().sum()  # type: ignore[no-any-return]

    with process_group(rank, size, store), warnings.catch_warnings():
        warnings.simplefilter("ignore", trimtab.TrimtabWarning)
        model, optimizer, _ = small(size)
        monitor, found = Monitor([Activations()], every=1), []
        for step in range(2):
            if gathered:
                with torch.no_grad():
                    model(torch.randn(2, 3))
            found += [result.problem for result in monitor(model, loss_fn, torch.randn(4, 3)).values()]
            train_small(model, optimizer, rank, size, range(step, step + 1))
        return found


def gathered(rank: int, size: int, store: str) -> tuple[str, str]:
    """The report where a forward has left the weights gathered, of a BNP that was attached in that state, and later."""
    with process_group(rank, size, store):
        model, optimizer, bnp = small(size)
        bnp.detach()
        with torch.no_grad():
            model(torch.randn(2, 3))
        bnp.attach(optimizer)
        train_small(model, optimizer, rank, size, range(1))
        later = str(bnp.report())
        with torch.no_grad():
            model(torch.randn(2, 3))
        return str(bnp.report()), later


def second_bnp(rank: int, size: int, store: str) -> str:
    """What a second BNP says of a gradient that the first has preconditioned, of which one process holds nothing."""
    from torch.distributed.fsdp import fully_shard

    with process_group(rank, size, store):
        model = nn.Linear(3, 1)
        fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
        bnps = [trimtab.BNP(model) for _ in range(2)]
        model(torch.randn(4, 3)).sum().backward()
        bnps[0].step()
        try:
            bnps[1].step()
        except RuntimeError as error:
            return str(error)
    return "nothing"


def unknown_fsdp(rank: int, size: int, store: str) -> list[list[int]]:
    """The same where torch does not tell what it does with gradients: no rows are lost, and none are dropped."""
    from torch.distributed.fsdp import FSDPModule

    told = FSDPModule._get_fsdp_state

    def tells_nothing(module: Any) -> Any:
        raise AttributeError

    found = []
    with process_group(rank, size, store):
        model, optimizer, bnp = small(size)
        for dropped in (False, True):
            for i in range(2):
                model.set_requires_gradient_sync(i == 1 or dropped)  # type: ignore[operator]
                FSDPModule._get_fsdp_state = tells_nothing  # type: ignore[method-assign]
                try:
                    model(torch.randn(6, 3)).sum().backward()
                finally:
                    FSDPModule._get_fsdp_state = told  # type: ignore[method-assign]
                if dropped and i == 0:
                    optimizer.zero_grad()
            found.append(pending(bnp))
            optimizer.step()
            optimizer.zero_grad()
    return found


def grad_scaler(rank: int, size: int, store: str) -> tuple[bool, float, list[int], list[float]]:
    """Whether the weights are finite, the scale, the numbers of steps, and the means; one loss is infinite."""
    with process_group(rank, size, store), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, optimizer, bnp = small(size)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        torch.manual_seed(rank)
        for step in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 3)).sum() * (torch.inf if (step, rank) == (1, 1) else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        finite = all(bool(each.full_tensor().isfinite().all()) for each in model.parameters())  # type: ignore[operator]
        running = bnp.state_dict()["layers"]["0"]["running"]
        return finite, scaler.get_scale(), [int(running["steps"]), int(running["skipped"])], running["mean"].tolist()


def recomputed(rank: int, size: int, store: str, reentrant: bool) -> list[list[int]]:
    """The rows that wait where a part of the model is computed again in the backward."""
    from torch.distributed.fsdp import fully_shard
    from torch.utils.checkpoint import checkpoint

    class Recomputing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 5), nn.Linear(5, 1)
            self.again = nn.Sequential(nn.Linear(5, 5), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            hidden = checkpoint(self.again, self.first(x), use_reentrant=reentrant)
            return self.last(hidden)  # type: ignore[no-any-return]

    found = []
    with process_group(rank, size, store):
        model = Recomputing()
        mesh = init_device_mesh("cpu", (size,))
        fully_shard(model.again, mesh=mesh)
        fully_shard(model, mesh=mesh)
        bnp = trimtab.BNP(model)
        for _ in range(2):
            model.zero_grad()
            for _ in range(2):
                model(torch.randn(4, 3)).sum().backward()
            found.append(pending(bnp))
            bnp.step()
    return found


def said_of(rank: int, size: int, store: str, kind: str) -> tuple[str, bool]:
    """What is said of a model that cannot be done, and whether its gradients stay as they are."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    with process_group(rank, size, store), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        model: nn.Module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        mesh = init_device_mesh("cpu", (size,))
        if kind == "flat":
            model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
        elif kind in ("column", "row"):
            parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        else:
            dim = {"shard_placement_fn": lambda parameter: Shard(parameter.ndim - 1)} if kind == "columns" else {}
            fully_shard(model, mesh=mesh, **dim)
        alone = [torch.distributed.new_group([each]) for each in range(size)][rank] if kind == "other group" else None
        try:
            bnp = trimtab.BNP(model, sync=kind != "not shared", skip="0" if kind == "row" else (), group=alone)
        except ValueError as error:
            return str(error), True
        model(torch.randn(6, 4)).sum().backward()
        if kind == "gathered":
            with torch.no_grad():
                model(torch.randn(6, 4))
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        before = [each.clone() for each in gradients]
        try:
            bnp.step()
        except (ValueError, RuntimeError) as error:
            unchanged = [bool((a == b).all()) for a, b in zip(before, gradients, strict=True)]
            return str(error), all(unchanged)
    return "nothing", True


def train_small(model: nn.Module, optimizer: Any, rank: int, size: int, steps: range) -> None:
    """Steps whose batches of 6 are shared among the processes."""
    for step in steps:
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (model(x.tensor_split(size)[rank]).square().sum() * size / 6).backward()
        optimizer.step()


def saved(rank: int, size: int, store: str, folder: str) -> str:
    """Train for three steps and save; returns the report."""
    import torch.distributed.checkpoint as dcp

    with process_group(rank, size, store):
        model, optimizer, bnp = small(size)
        train_small(model, optimizer, rank, size, range(3))
        dcp.save({"model": model.state_dict(), "bnp": bnp}, checkpoint_id=f"{folder}/dcp")
        whole = {name: value.full_tensor() for name, value in model.state_dict().items()}
        if rank == 0:
            torch.save({"model": whole, "bnp": bnp.state_dict()}, f"{folder}/whole.pt")
        return str(bnp.report())


def resumed(rank: int, size: int, store: str, folder: str, by: str) -> Result:
    """Load and train for three more."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    with process_group(rank, size, store):
        model, optimizer, bnp = small(size)
        if by == "dcp":
            state = {"model": model.state_dict(), "bnp": bnp}
            dcp.load(state, checkpoint_id=f"{folder}/dcp")
            model.load_state_dict(state["model"])  # type: ignore[arg-type]
        else:
            loaded = torch.load(f"{folder}/whole.pt")
            set_model_state_dict(model, loaded["model"], options=StateDictOptions(full_state_dict=True))
            bnp.load_state_dict(loaded["bnp"])
        train_small(model, optimizer, rank, size, range(3, 6))
        return result(model, bnp)
