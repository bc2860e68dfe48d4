"""Statistics shared between the processes that train one model: the rows of all of them, added up once per step.

Each process hands in one vector with the sums of the rows of all its observed layers, seen or not, and gets back the
sums over all processes. So every process makes the step that one process would have made with all of the data, and
what a process has not seen is zeros and no special case.
"""

import hashlib
import itertools
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from trimtab import _torch
from trimtab.bnp.backends.sums import AllSums
from trimtab.bnp.options import Options
from trimtab.bnp.row_sums import COUNTS, RowSums
from trimtab.bnp.rows.layer import ObservedLayer
from trimtab.bnp.sharding import ShardedStep
from trimtab.notice import warn_user

if TYPE_CHECKING or dist.is_available():
    from torch.distributed.algorithms.join import Join, Joinable, JoinHook
else:  # a torch that was built without it

    class Joinable:
        """Stands for the class of that name."""

    JoinHook = Joinable

__all__ = ["Exchange", "ExchangeJoinHook", "JoinHook", "Joinable", "group_of"]

_IS_AVAILABLE = dist.is_available()

# By the group, how many layouts its processes have compared: the same number in all of them.
_COMPARED: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()

Layers = Mapping[str, ObservedLayer]
Layout = tuple[tuple[str, int], ...]
"""The name of each layer, and how many columns it has."""


class Exchange:
    """Adds up the rows of all processes.

    Attributes:
        sync: Whether to do so.
        group: Of which processes; None: of all.
        joinable: What takes part in a `Join`.
        joined: Whether this process has run out of data in a `Join`, so that it has no gradients of its own.
    """

    def __init__(self, sync: bool, group: Any, options: Options) -> None:
        """Decide when a step comes: a group of processes can be made later than a BNP."""
        self.sync, self.group = sync, group
        self.joinable: weakref.ref[Joinable] | None = None
        self._options = options
        self._sums = AllSums()
        self._checked: Layout | None = None
        self._checked_with: list[weakref.ref[Any]] = []  # the groups: others have other processes
        self._number = 0  # of what was compared, which goes along with the sums
        self._warned = False
        self.joined = False

    def __deepcopy__(self, memo: dict[int, Any]) -> "Exchange":
        """The same processes."""
        return Exchange(self.sync, self.group, self._options)

    def __reduce__(self) -> tuple[type["Exchange"], tuple[Any, ...]]:
        """A group of processes cannot be saved."""
        return Exchange, (self.sync, None, self._options)

    @property
    def processes(self) -> int:
        """How many processes share the training."""
        if not _IS_AVAILABLE or not dist.is_initialized():
            return 1
        return dist.get_world_size(self.group)

    def __call__(self, layers: Layers, sharded: ShardedStep | None = None) -> dict[ObservedLayer, RowSums] | None:
        """The rows of all layers in all processes; None if there is one process, or if nothing is to be shared.

        There is nothing to share of a model without memory (on the meta device), either.

        Args:
            layers: The observed layers.
            sharded: The step of those among them that are sharded; None if none is.

        Raises:
            RuntimeError: If the processes observe different layers.
            ValueError: If weights are sharded, and statistics are not to be shared or only among other processes.
        """
        if sharded is not None and self.group is not None and not sharded.is_over(self.group):
            raise ValueError(
                "BNP(group=...) has to be the group of all processes over which the weights are sharded and copied; "
                "leave it out to have these."
            )
        if self.processes <= 1 or _device(layers).type == "meta":
            return None
        if not self.sync and sharded is not None:
            raise ValueError("BNP(sync=False) cannot precondition weights that are sharded over several processes.")
        if not self.sync:
            if not self._warned and not _torch.is_compiling():
                self._warned = True
                warn_user(
                    "BNP(sync=False) does not share its statistics between processes: with different data in each of "
                    "them their weights will drift apart."
                )
            return None
        if self.joinable is not None and not _torch.is_compiling() and (joinable := self.joinable()) is not None:
            Join.notify_join_context(joinable)
        return self.exchange(layers, [layer.pending() for layer in layers.values()], sharded)

    def exchange(
        self, layers: Layers, rows: Sequence[Any], sharded: ShardedStep | None = None
    ) -> dict[ObservedLayer, RowSums]:
        """Add up these rows of all layers over all processes."""
        shapes = [layer.columns for layer in layers.values()]
        columns = [shape.numel() for shape in shapes]
        sizes = [COUNTS + 2 * width for width in columns]
        device, groups = _device(layers), self._groups(sharded)
        message = None if sharded is None else sharded.message()
        if not _torch.is_compiling():
            more = () if message is None else (("(gradients of biases)", len(message)),)
            self._check_layout((*zip(layers, columns, strict=True), *more), device, groups)
        sums = self._sums.of(rows, columns, device)
        if sharded is not None:
            for layer, part in zip(layers.values(), sums.split(sizes), strict=True):
                sharded.mark_not_finite(layer, part)
        vectors = [sums] if message is None else [sums, message]
        # On a GPU it would have to be waited for, to look at the number.
        added = self._added_up(vectors, groups, numbered=device.type == "cpu")
        if sharded is not None and message is not None:
            sharded.receive(added[1])
        return {
            layer: RowSums(part, shape, layer.dtype)
            for layer, part, shape in zip(layers.values(), added[0].split(sizes), shapes, strict=True)
        }

    def _groups(self, sharded: ShardedStep | None) -> list[Any]:
        """The groups over which to add up, one after the other: one, unless weights are sharded in a part of a mesh."""
        if sharded is None or sharded.mesh is None or self.group is not None:
            return [self.group]
        if sharded.mesh.size() == dist.get_world_size():
            return [None]
        return [sharded.mesh.get_group(dim) for dim in range(sharded.mesh.ndim)]

    def _added_up(self, vectors: list[Tensor], groups: Sequence[Any], numbered: bool) -> Sequence[Tensor]:
        """Add up vectors over all processes, and see that these have all handed in the sums of the same layers.

        That is not so if several BNPs make their steps in different orders. Then no process finds the sum of the
        numbers and that of their squares to be those of equal numbers.
        """
        number = [self._number, self._number**2]
        if numbered:
            vectors = [*vectors, torch.tensor(number, dtype=torch.float64)]
        whole = torch.cat(vectors) if len(vectors) > 1 else vectors[0]
        for group in groups:
            dist.all_reduce(whole, group=group)
        parts: Sequence[Tensor] = whole.split([len(vector) for vector in vectors])
        if numbered and not _torch.is_compiling():
            processes = math.prod(dist.get_world_size(group) for group in groups)
            if parts[-1].tolist() != [processes * each for each in number]:
                raise RuntimeError(
                    "BNP cannot add up the statistics of different BNPs: step several BNPs in the same order in each "
                    "process."
                )
        return parts

    def check(self, layers: Layers) -> None:
        """Compare the layers of all processes, if they were not compared yet: for all of them at the same time."""
        if self.sync and self.processes > 1:
            layout = tuple((name, layer.columns.numel()) for name, layer in layers.items())
            self._check_layout(layout, _device(layers), [self.group])

    def _check_layout(self, layout: Layout, device: torch.device, groups: Sequence[Any]) -> None:
        """See to it that all processes hand in the same numbers in the same order."""
        named = [dist.group.WORLD if group is None else group for group in groups]
        if layout == self._checked and [known() for known in self._checked_with] == named:
            return
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "BNP has not compared the layers of all processes yet, which cannot be captured in a CUDA graph: "
                "make a step before the capture."
            )
        options = tuple((name, value) for name, value in asdict(self._options).items() if name != "fast")
        about = layout, options
        number = int.from_bytes(hashlib.sha256(repr(about).encode()).digest()[:7])
        largest = torch.tensor([number, -number], device=device)
        for group in groups:
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        high, low = largest.tolist()
        if high != -low:  # on all of them: so all can tell each other
            every = [about]
            for group in groups:
                gathered: list[Any] = [None] * dist.get_world_size(group)
                dist.all_gather_object(gathered, every, group=group)
                every = [one for each in gathered for one in each]
            raise RuntimeError(
                "BNP cannot add up the statistics of processes that observe different layers or have different "
                f"options: {_difference(every)}. Make the same BNP for the same model in each process, and step "
                "several BNPs in the same order."
            )
        self._checked, self._checked_with = layout, [weakref.ref(group) for group in named]
        _COMPARED[named[0]] = _COMPARED.get(named[0], 0) + 1  # so that BNPs of equal models have different numbers
        self._number = (number + _COMPARED[named[0]]) % 2**20  # so that sums of squares are exact

    # ---- Join: processes that have run out of data -------------------------------------------------------------------

    def shadow(self, layers: Layers) -> None:
        """Take part in the exchange of the others, without rows of one's own."""
        if self.sync and self.processes > 1:
            self.joined = True
            self.exchange(layers, [None] * len(layers))

    def finish_join(self, layers: Layers, is_last: bool) -> None:
        """All have run out of data: take over the averages of one that was there to the end."""
        self.joined = False
        if not self.sync or self.processes <= 1:
            return
        device = _device(layers)
        rank = torch.tensor([dist.get_rank(self.group) if is_last else -1], device=device)
        dist.all_reduce(rank, dist.ReduceOp.MAX, group=self.group)
        averages = [layer.running or layer.new_averages() for layer in layers.values()]
        tensors = [tensor for each in averages for tensor in each.tensors().values()]
        flat = torch.cat([tensor.double().flatten().to(device) for tensor in tensors])
        source = int(rank)
        dist.broadcast(
            flat, source if self.group is None else dist.get_global_rank(self.group, source), group=self.group
        )
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view(tensor.shape))
        for layer, each in zip(layers.values(), averages, strict=True):
            if bool(each.steps) or bool(each.skipped):
                layer.running = each


class ExchangeJoinHook(JoinHook):
    """What a process does for the others when it has no data left."""

    def __init__(self, exchange: Exchange, layers: Layers) -> None:
        """For the layers of one BNP."""
        super().__init__()
        self._exchange, self._layers = exchange, layers

    def main_hook(self) -> None:
        """Take part in one exchange."""
        self._exchange.shadow(self._layers)

    def post_hook(self, is_last_joiner: bool) -> None:
        """End with the averages of the others."""
        self._exchange.finish_join(self._layers, is_last_joiner)


def group_of(model: nn.Module) -> Any:
    """The processes that a model is trained by, if it says so; it may be within another module, or compiled."""
    wrapped = [module for module in model.modules() if isinstance(module, nn.parallel.DistributedDataParallel)]
    groups = {id(module.process_group): module.process_group for module in wrapped}
    return next(iter(groups.values())) if len(groups) == 1 else None


def _device(layers: Layers) -> torch.device:
    return next((layer.device for layer in layers.values()), torch.device("cpu"))


def _difference(every: Sequence[tuple[Layout, tuple[tuple[str, Any], ...]]]) -> str:
    """In what the first process and another one differ, the same words on each of them."""
    other = next(i for i, each in enumerate(every) if each != every[0])
    for kind, (ours, theirs) in zip(("layer", "option"), zip(every[0], every[other], strict=True), strict=True):
        for a, b in itertools.zip_longest(ours, theirs):
            if a != b:
                shown = ["nothing" if each is None else f"{kind} {each[0]!r} ({each[1]})" for each in (a, b)]
                return f"process 0 has {shown[0]} where process {other} has {shown[1]}"
    raise AssertionError("they are equal")
