"""An alarm for something that is decided on a device and must not be waited for."""

from collections.abc import Callable

import torch
from torch import Tensor

EVERY = 8  # checks, of which one looks at what is not known already


class DeferredAlarm:
    """Calls a function once, after a flag was seen to be true.

    A flag on the CPU is looked at at once. One on a GPU is copied to the host without waiting, and looked at in a
    later step, when the copy has arrived; one that a GPU raises on the host, now and then. Other devices are not looked
    at, and neither is a flag in compiled code.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        """Call `ring` at most once."""
        self._ring: Callable[[], None] | None = ring
        self._checks = 0
        self._lasting: dict[int, Tensor] = {}  # numbers on the host, by their identities,
        self._raised: dict[torch.device, Tensor | None] = {}  # and booleans that were not looked at yet
        self._copies: dict[torch.device, tuple[Tensor, torch.cuda.Event]] = {}

    def watch(self, flag: Tensor) -> None:
        """Take a flag into account from the next `check` on: a boolean of now, or a number on the host that lasts.

        Not a boolean while a CUDA graph is captured, which would read those of earlier steps when they are gone.
        """
        if id(flag) in self._lasting or self._ring is None or torch.compiler.is_dynamo_compiling():
            return
        if flag.dtype is not torch.bool:
            self._lasting[id(flag)] = flag
        elif not (flag.is_cuda and torch.cuda.is_current_stream_capturing()):
            before = self._raised.get(flag.device)
            self._raised[flag.device] = flag if before is None else before | flag

    def check(self, *, now: bool = False) -> None:
        """Ring, if a flag is known to have been raised; what lasts is looked at every so often, or now."""
        if not (self._lasting or self._raised) or torch.compiler.is_dynamo_compiling():
            return
        self._checks += 1
        looks = self._checks % EVERY == 0
        if ((looks or now) and any(map(bool, self._lasting.values()))) or (
            self._raised and any(self._known_to_be_raised(*each, looks) for each in list(self._raised.items()))
        ):
            ring, self._ring = self._ring, None
            self._lasting.clear()
            self._raised.clear()
            self._copies.clear()
            if ring is not None:
                ring()

    def _known_to_be_raised(self, device: torch.device, flag: Tensor | None, looks: bool) -> bool:
        if device.type == "cpu":
            del self._raised[device]
            return bool(flag)
        if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return False
        if device in self._copies:
            copy, arrived = self._copies[device]
            if not arrived.query():
                return False
            del self._copies[device]
            if flag is None:  # no other one was raised since
                del self._raised[device]
            return bool(copy)
        if flag is not None and looks:
            copy = torch.empty_like(flag, device="cpu", pin_memory=True).copy_(flag, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record(torch.cuda.current_stream(device))
            self._copies[device] = copy, arrived
            self._raised[device] = None
        return False
