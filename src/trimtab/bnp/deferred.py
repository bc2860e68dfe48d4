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
        self._raised: dict[torch.device, list[Tensor]] = {}
        self._copies: dict[torch.device, tuple[Tensor, torch.cuda.Event]] = {}

    def watch(self, flag: Tensor) -> None:
        """Take a flag into account at the next `check`: a boolean of now, or a number on the host that stays raised.

        Not a boolean while a CUDA graph is captured, which would read those of earlier steps when they are gone.
        """
        if self._ring is None or torch.compiler.is_dynamo_compiling() or _captured(flag):
            return
        flags = self._raised.setdefault(flag.device, [])
        if flag.dtype is not torch.bool:
            if not any(known is flag for known in flags):
                flags.append(flag)
        elif flags and flags[0].dtype is torch.bool:
            flags[0] = flags[0] | flag
        else:
            flags.insert(0, flag)

    def check(self) -> None:
        """Ring, if a flag is known to have been raised."""
        if not self._raised or torch.compiler.is_dynamo_compiling():
            return
        if any(self._known_to_be_raised(device, flags) for device, flags in self._raised.items()):
            ring, self._ring = self._ring, None
            self._raised.clear()
            self._copies.clear()
            if ring is not None:
                ring()

    def _known_to_be_raised(self, device: torch.device, flags: list[Tensor]) -> bool:
        if device.type == "cpu":
            return any(map(bool, flags))
        if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return False
        if device in self._copies:
            copy, arrived = self._copies[device]
            if not arrived.query():
                return False
            del self._copies[device]
            return bool(copy)
        if flags:
            self._checks += 1
            if self._checks % EVERY == 0:
                raised = torch.stack(flags).any()
                copy = torch.empty_like(raised, device="cpu", pin_memory=True).copy_(raised, non_blocking=True)
                arrived = torch.cuda.Event()
                arrived.record(torch.cuda.current_stream(device))
                self._copies[device] = copy, arrived
                flags.clear()
        return False


def _captured(flag: Tensor) -> bool:
    return flag.is_cuda and torch.cuda.is_current_stream_capturing()
