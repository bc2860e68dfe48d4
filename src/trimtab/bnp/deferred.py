"""An alarm for something that is decided on a device and must not be waited for."""

from collections.abc import Callable

import torch
from torch import Tensor

EVERY = 8  # checks of a flag on a GPU, of which one looks


class DeferredAlarm:
    """Calls a function once, after a flag on a device was seen to be true.

    On the CPU that is at once. On a GPU the flag is copied to the host without waiting, and looked at in a
    later step, when the copy has arrived. Other devices are not looked at, and neither is a flag in compiled code.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        """Call `ring` at most once."""
        self._ring: Callable[[], None] | None = ring
        self._checks = 0
        self._raised: dict[torch.device, Tensor] = {}
        self._copies: dict[torch.device, tuple[Tensor, torch.cuda.Event]] = {}

    def watch(self, flag: Tensor) -> None:
        """Take a flag into account at the next `check`.

        Not while a CUDA graph is captured, which would read flags of earlier steps when they are gone.
        """
        if self._ring is not None and not torch.compiler.is_dynamo_compiling() and not _captured(flag):
            raised = self._raised.get(flag.device)
            if raised is None:
                self._raised[flag.device] = flag
            elif raised is not flag:
                self._raised[flag.device] = (raised != 0) | (flag != 0)

    def check(self) -> None:
        """Ring, if a flag is known to have been raised."""
        if not torch.compiler.is_dynamo_compiling() and any(
            self._known_to_be_raised(device, flag) for device, flag in self._raised.items()
        ):
            ring, self._ring = self._ring, None
            self._raised.clear()
            self._copies.clear()
            if ring is not None:
                ring()

    def _known_to_be_raised(self, device: torch.device, flag: Tensor) -> bool:
        if device.type == "cpu":
            return bool(flag)
        if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return False
        self._checks += 1
        if self._checks % EVERY:
            return False
        copy, arrived = self._copies.get(device, (None, None))
        if copy is None or arrived is None:
            copy = torch.empty_like(flag, device="cpu", pin_memory=True).copy_(flag, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record(torch.cuda.current_stream(device))
            self._copies[device] = copy, arrived
        if not arrived.query():
            return False
        del self._copies[device]
        return bool(copy)


def _captured(flag: Tensor) -> bool:
    return flag.is_cuda and torch.cuda.is_current_stream_capturing()
