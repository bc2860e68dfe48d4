"""The backend for tensors on an NVIDIA GPU: kernels in Triton, each for all layers of a network in one launch.

On a GPU a step of a small network is a matter of launches, not of arithmetic. So the moments of all inputs that
autograd keeps until the backward are computed together, when it begins, and one kernel does the steps of all layers.

What differs from layer to layer is read from tables on the device. They are copied there again only if something in
them has changed, which with PyTorch's allocator is rare once training runs.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from trimtab.bnp.algorithm.step import LayerStep, Shape
from trimtab.bnp.backends import record
from trimtab.bnp.backends.buffers import BufferMoments, InputLayout, sizes_in_memory
from trimtab.bnp.backends.triton_plans import ALIGNED, TYPES, MomentsPlan, Plans, StepPlan, is_capturing
from trimtab.bnp.options import Options

MAX_NUMBERS = 2**31 - 2**21  # in a tensor: they are counted with 32 bits, up to a program's whole share beyond the end
_MAX_WAITING = 64  # inputs, or two per layer if that is more: they stay in memory, also if no backward comes
_MAX_PLANS, _MAX_ALONE = 32, 1024

# Flags on the host are never let go: a kernel that is still to run may set one when its BNP is gone.
_FLAGS: list[Tensor] = []

_AS_IT_IS = nullcontext()

_Group = tuple[torch.device, MomentsPlan | None, list[int]]
"""A device, a plan, and the numbers of the moments that are computed together there."""


class TritonBackend:
    """Moments and steps by the Triton kernels, for one BNP.

    Attributes:
        waiting: The moments to compute at the next `flush`.
        max_waiting: How many may wait.
    """

    def __init__(self, options: Options, layers: int, waiting: list[BufferMoments]) -> None:
        """Without plans, for a model with so many layers; moments wait in `waiting`."""
        self.max_waiting = max(_MAX_WAITING, 2 * layers)
        # On the host, where the device can write to it: so it is looked at without asking the device for anything.
        self._flag = torch.zeros((), dtype=torch.int32, pin_memory=True)
        _FLAGS.append(self._flag)
        self.waiting = waiting
        self._moments_plans = Plans(MomentsPlan, _MAX_PLANS)
        self._plans_for_one = Plans(partial(MomentsPlan, alone=True), _MAX_ALONE)
        self._step_plans = Plans(partial(StepPlan, self._flag), _MAX_PLANS)
        # The last moments, to see that the next ones are the same but for addresses, and their plans.
        self._last_moments: tuple[list[InputLayout], list[_Group]] | None = None
        # The shapes of the last step, its device and its plan
        self._last_step: tuple[list[Shape], torch.device, StepPlan] | None = None
        use_batch, second_moment = options.statistics == "batch", options.no_bias == "second_moment"
        common = (1 - options.rho, options.eps1, options.eps2, options.debias, use_batch, second_moment)
        self._constants = {fold: (*common, fold) for fold in (False, True)}

    def layout(self, x: Tensor, column: int) -> InputLayout | None:
        """How inputs like this one lie in memory; None if they are not for the kernel."""
        if type(x) is not Tensor or x.layout is not torch.strided or x.dtype not in TYPES or x.is_neg():
            return None
        sizes = sizes_in_memory(x, column) if 0 < x.numel() < MAX_NUMBERS else None
        return None if sizes is None else _TritonLayout(x, column, sizes, self)

    def flush(self) -> None:
        """Compute all that waits."""
        if self.waiting:
            waiting = self.waiting.copy()
            self.waiting.clear()
            self._compute(waiting)

    def _compute(self, waiting: Sequence[BufferMoments]) -> None:
        """Compute moments, all of one type and layout in one launch.

        Inputs of new sizes are left to compute themselves: it takes time to plan for them, and they may not come again.
        """
        addresses = [moments.input_address() for moments in waiting]
        if any(not address or address % ALIGNED for address in addresses):
            found = list(zip(waiting, addresses, strict=True))
            for moments, address in found:
                if address % ALIGNED:
                    moments.materialize()
            waiting = [moments for moments, address in found if address and not address % ALIGNED]
            addresses = [address for address in addresses if address and not address % ALIGNED]
        captured, layouts, last = is_capturing(), [moments.layout for moments in waiting], self._last_moments
        if last is not None and not captured and layouts == last[0]:
            groups = last[1]
        else:
            groups = self._grouped(layouts, captured)
            if len(waiting) > 1 and all(plan is not None for _, plan, _ in groups):
                self._last_moments = layouts, groups
        for device, plan, members in groups:
            if plan is None:
                for i in members:
                    waiting[i].materialize()
                continue
            content = plan.pack(*[addresses[i] for i in members])
            out = torch.empty(plan.size, device=device)
            with _current(device):
                plan.launch((plan.addresses.holding(content, captured), out), plan.constants)
            at = out.data_ptr()
            for i, first in zip(members, plan.first, strict=True):
                waiting[i].written(out, first, at + 4 * first)

    def plan_for_one(self, layout: InputLayout) -> MomentsPlan | None:
        """The plan for the moments of one input in a launch of its own; None the first time."""
        plan: MomentsPlan | None = self._plans_for_one.find(
            (layout.dtype, (layout.sizes,), layout.device), is_capturing()
        )
        return plan

    def _grouped(self, layouts: Sequence[InputLayout], captured: bool) -> list[_Group]:
        """What is computed together, each with its plan."""
        groups: dict[Any, list[int]] = {}
        for i, layout in enumerate(layouts):
            groups.setdefault((layout.device, layout.dtype, layout.positions > 1), []).append(i)
        return [
            (
                device,
                self._moments_plans.find((dtype, tuple([layouts[i].sizes for i in members]), device), captured),
                members,
            )
            for (device, dtype, _), members in groups.items()
        ]

    def record(self, step: LayerStep) -> bytes:
        """The step as the kernel reads it; empty if it is not for the kernel."""
        return record.record(step, torch.float32, MAX_NUMBERS)

    def step(self, steps: Sequence[LayerStep], records: Sequence[bytes], fold: bool) -> list[Tensor] | None:
        """The steps of layers on one device, by their records.

        Returns:
            Flags, not zero once something was found not to be finite; None if nothing was done, since layers of these
            shapes have not been met before.
        """
        device, captured, last = steps[0].weight.device, is_capturing(), self._last_step
        shapes = [step.shape for step in steps]
        if last is not None and not captured and shapes == last[0] and device == last[1]:
            plan = last[2]
        else:
            plan = self._step_plans.find((tuple(shapes), device), captured)
            if plan is None:
                return None
            self._last_step = shapes, device, plan
        with _current(device):
            plan.launch[fold]((plan.table.holding(b"".join(records), captured),), self._constants[fold])
        return [self._flag]


class _TritonLayout(InputLayout):
    """Inputs of one kind, whose moments the kernel computes with others or, if they cannot wait, alone."""

    def __init__(self, x: Tensor, column: int, sizes: tuple[int, int, int], backend: TritonBackend) -> None:
        """Of inputs like this one."""
        super().__init__(x, column, sizes, torch.float32)
        self._backend = backend
        self._plan: MomentsPlan | None = None

    def moments(self, x: Tensor, saved: bool) -> BufferMoments:
        """The moments of an input of this kind; if it is saved they wait until `flush`, else they are computed now."""
        moments = BufferMoments(self, x, None)
        if saved:
            backend = self._backend
            backend.waiting.append(moments)
            if len(backend.waiting) > backend.max_waiting:
                backend.flush()
            return moments
        plan = self._plan
        if plan is None or is_capturing():  # a graph keeps the plans that it is captured with
            plan = self._plan = self._backend.plan_for_one(self)
        if plan is None or x.data_ptr() % ALIGNED:
            moments.materialize()
            return moments
        out = torch.empty(plan.size, device=self.device)
        with _current(self.device):
            plan.launch((x, out), plan.constants)
        moments.written(out, 0, out.data_ptr())
        return moments


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Within, this is the current device."""
    is_current = _is_the_only_one() or torch.cuda.current_device() == device.index
    return _AS_IT_IS if is_current else torch.cuda.device(device)


@cache
def _is_the_only_one() -> bool:
    """Whether there is one GPU only, which is the current device then."""
    return torch.cuda.device_count() == 1
