"""The processes that train a run together, one of which may be the only one."""

import os
import random
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from trimtab._torch import BATCH_NORMS, INSTANCE_NORMS
from trimtab.data.epochs import part_of
from trimtab.norms import RunningNorm

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Processes:
    """This process among those that train a run together.

    All of them call the methods that exchange something, in the same order. One process alone exchanges nothing, and
    gets back what it hands in.

    Attributes:
        rank: The number of this process. The first one, 0, reads and writes the folder of the run and prints.
        size: How many there are.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def of_group(cls) -> "Processes":
        """Those of torch's default group; one process, where there is none."""
        if not dist.is_available() or not dist.is_initialized():
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this is the one that reads, writes and prints."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        """Whether there are others."""
        return self.size > 1

    def shares(self, batch_size: int) -> list[int]:
        """How many samples of a batch each process gets."""
        parts = [part_of(batch_size, rank, self.size) for rank in range(self.size)]
        return [part.stop - part.start for part in parts]

    def added(self, tensor: Tensor) -> Tensor:
        """The sum of the tensors of all processes."""
        if self.several:
            tensor = tensor.clone()
            dist.all_reduce(tensor)
        return tensor

    def largest(self, *numbers: int) -> list[int]:
        """The largest of each number among all processes. A GPU is not waited for."""
        if not self.several:
            return list(numbers)
        highest = torch.tensor(numbers)
        dist.all_reduce(highest, dist.ReduceOp.MAX)
        return highest.tolist()

    def from_first(self, value: T) -> T:
        """What the first process hands in; the values of the others are not looked at."""
        if not self.several:
            return value
        values = [value if self.first else None]
        dist.broadcast_object_list(values, 0, device=torch.device("cpu"))
        return values[0]  # type: ignore[return-value]

    def gathered(self, value: T) -> list[T]:
        """In the first process, what each process has handed in; an empty list in the others."""
        if not self.several:
            return [value]
        values: list[Any] = [None] * self.size
        dist.gather_object(value, values if self.first else None)
        return values if self.first else []

    def whole_batch(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor] | None:
        """In the first process, the shares of a batch that all processes have, put together; None in the others."""
        if not self.several:
            return batch
        every = self.gathered([part.cpu() for part in batch])
        if not self.first:
            return None
        inputs, targets = (torch.cat(parts).to(batch[0].device) for parts in zip(*every, strict=True))
        return inputs, targets

    def share_buffers(self, model: nn.Module) -> None:
        """Take over the buffers of the first process: running statistics of each process's share of the batches."""
        if self.several:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def own_device(self, device: torch.device) -> torch.device:
        """The device of this process: on a machine with several GPUs each process has its own.

        Raises:
            ValueError: If there are not so many, or if all of them are told to use the same one.
        """
        if not self.several or device.type != "cuda":
            return device
        if device.index is not None:
            raise ValueError(f"{device} cannot be for {self.size} processes, of which each takes its own; use cuda")
        number, devices = int(os.environ.get("LOCAL_RANK", self.rank)), torch.cuda.device_count()
        if number >= devices:
            raise ValueError(f"each process needs a CUDA device of its own, and there are {devices}; start fewer")
        torch.cuda.set_device(number)
        return torch.device("cuda", number)

    def seed(self, seed: int, step: int = 0) -> None:
        """Give each process but the first random numbers of its own, for noise and dropout, from some step on."""
        if not self.first:
            torch.manual_seed(random.Random(f"{seed} {self.rank} {step}").getrandbits(63))


ALONE = Processes()


def uses_batch_statistics(model: nn.Module) -> bool:
    """Whether a sample's output in training depends on which others are in the batch, or rather in its share."""
    return any(isinstance(module, (*BATCH_NORMS, RunningNorm)) for module in model.modules())


def allow_shares(model: nn.Module, method: str, shares: list[int]) -> None:
    """Let layers normalize each process's share by its own statistics, as torch's BatchNorm does.

    Raises:
        ValueError: If some process gets no sample and a layer cannot do without.
    """
    if min(shares) == 0 and any(
        isinstance(module, (*BATCH_NORMS, *INSTANCE_NORMS, RunningNorm)) for module in model.modules()
    ):
        raise ValueError(
            f"a batch of {sum(shares)} has no sample for some of {len(shares)} processes, without which {method} "
            "cannot normalize; take a larger batch size or fewer processes"
        )
    for module in model.modules():
        if isinstance(module, RunningNorm):
            module.local_statistics = True


def shares_in_words(shares: list[int]) -> str:
    """How a batch is divided.

    >>> shares_in_words([64, 64])
    '2 processes with 64 samples each'
    >>> shares_in_words([7, 7, 6])
    '3 processes with 6 or 7 samples each'
    """
    samples = f"{counts_in_words(shares)} sample{'s' if max(shares) != 1 else ''}"
    return f"{len(shares)} processes with {samples} each"


def counts_in_words(shares: list[int]) -> str:
    """How many samples a process gets: one number or two."""
    return " or ".join(map(str, sorted(set(shares))))
