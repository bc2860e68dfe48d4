"""Everything trimtab uses of torch that torch does not document, and what is done where a version of torch lacks it.

No other file of trimtab names a private attribute of torch (`tests/test_private_names.py`). A name is looked up by
`_find`, which returns None where torch has no such name, and each function here has another way then, by documented
names only: slower perhaps, but right (`tests/test_missing_names.py` removes each name in turn). Classes that torch
names with an underscore are found as the common base of the public ones.
"""

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

LOOKED_UP: list[str] = []
"""The dotted names that are looked up in torch, in this version there or not."""


def _find(name: str) -> Any:
    """What torch has under a dotted name such as `torch._foreach_sub`; None if there is no such name."""
    LOOKED_UP.append(name)
    value: Any = torch
    for part in name.split(".")[1:]:
        value = getattr(value, part, None)
    return value


# ---- Kinds of layers


def _common_base(*kinds: type[nn.Module]) -> tuple[type[nn.Module], ...]:
    """The nearest base class that these have in common, for isinstance; they themselves if that is nn.Module."""
    shared = next(each for each in kinds[0].__mro__ if all(issubclass(kind, each) for kind in kinds))
    return kinds if shared is nn.Module else (shared,)


BATCH_NORMS = _common_base(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
INSTANCE_NORMS = _common_base(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
DROPOUTS = _common_base(
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
)
AVERAGE_POOLS = (
    *_common_base(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *_common_base(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
)
MAX_POOLS = _common_base(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)


@cache
def weight_norm_type() -> type[nn.Module]:
    """The class of the parametrization that `torch.nn.utils.parametrizations.weight_norm` registers."""
    layer = nn.Module()
    layer.register_parameter("weight", nn.Parameter(torch.ones(1, 1)))
    nn.utils.parametrizations.weight_norm(layer)
    return type(layer.get_submodule("parametrizations.weight.0"))


# ---- Modules


def own_parameter(module: nn.Module, name: str) -> nn.Parameter | None:
    """A parameter that is registered under this name in the module itself; None if there is none."""
    return next((p for n, p in module.named_parameters(recurse=False, remove_duplicate=False) if n == name), None)


def clear_hooks(module: nn.Module) -> None:
    """Remove all hooks from a module, not from those within it."""
    for name, value in vars(module).items():
        if name.endswith("_hooks") and isinstance(value, dict):
            value.clear()


def uncompiled(module: nn.Module) -> nn.Module:
    """The module that `torch.compile(module)` stands for; any other module is returned as it is.

    If torch does not say which, the compiled module is returned. It can be used in its place; the names of its layers
    are longer.
    """
    original = getattr(module, "_orig_mod", None)
    return original if isinstance(original, nn.Module) else module


_COMPILER = "torch._dynamo"
LOOKED_UP.append(_COMPILER)
_compiler_is_found = importlib.util.find_spec(_COMPILER) is not None


@contextmanager
def not_compiled() -> Iterator[None]:
    """Within, compiled modules run as they were written.

    Compiled ones have no second derivatives, and do not see hooks that are registered later. As long as nothing has
    imported the compiler nothing is compiled, and importing it takes a second.
    """
    if _compiler_is_found and _COMPILER not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


# ---- Autograd

_current_backward = _find("torch._C._current_graph_task_id")


def in_backward() -> bool:
    """Whether a backward is running in this thread, as when checkpointing computes something again."""
    if _current_backward is not None:
        return bool(_current_backward() != -1)
    if threading.current_thread().name.startswith("Dummy-"):  # a thread of the autograd engine, for a GPU
        return True
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == torch.autograd.__name__ and frame.f_code.co_name in ("grad", "backward"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


# ---- Many tensors at once: one launch on a GPU for all of them

_foreach_copy_ = _find("torch._foreach_copy_")
_foreach_add_ = _find("torch._foreach_add_")
_foreach_sub = _find("torch._foreach_sub")
_foreach_norm = _find("torch._foreach_norm")


def copy_all_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source to the target at its place."""
    if _foreach_copy_ is not None:
        _foreach_copy_(targets, sources)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def add_all_(targets: Sequence[Tensor], others: Sequence[Tensor], *, alpha: float) -> None:
    """Add to each target `alpha` times the other at its place."""
    if _foreach_add_ is not None:
        _foreach_add_(targets, others, alpha=alpha)
        return
    for target, other in zip(targets, others, strict=True):
        target.add_(other, alpha=alpha)


def subtract_all(a: Sequence[Tensor], b: Sequence[Tensor]) -> Sequence[Tensor]:
    """Each a − b."""
    if _foreach_sub is not None:
        return _foreach_sub(a, b)  # type: ignore[no-any-return]
    return [x - y for x, y in zip(a, b, strict=True)]


def norms(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The Euclidean norm of each tensor, summed up in float64."""
    if _foreach_norm is not None:
        return _foreach_norm(tensors, 2, torch.float64)  # type: ignore[no-any-return]
    return [torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in tensors]


# ---- Optimizers


def step_without_hooks(kind: type[torch.optim.Optimizer]) -> Callable[[Any], Any]:
    """The `step` of a class of optimizers without the wrapper that calls the hooks registered for all optimizers."""
    step: Any = kind.step
    hooked = getattr(step, "hooked", None)
    if hooked is None:
        hooked = "profile_hook_step" in getattr(getattr(step, "__code__", None), "co_qualname", "")
    return step.__wrapped__ if hooked else step  # type: ignore[no-any-return]


# ---- Training


def allow_recompilations(count: int) -> None:
    """Let torch.compile make code for so many variants of one function before it gives up and runs it eagerly.

    The limit has no public name. Where it cannot be set, further variants run eagerly: slower, with the same results.
    """
    try:
        from torch._dynamo import config  # takes a second, so only when something is compiled
    except ImportError:
        return
    for name in ("recompile_limit", "cache_size_limit"):  # the second is its name up to torch 2.6
        if hasattr(config, name):
            setattr(config, name, max(getattr(config, name), count))
            return


def has_combo_kernels() -> bool:
    """Whether torch.compile's option `combo_kernels` exists and is right; before torch 2.11 it had errors."""
    if torch.__version__ < "2.11":  # this compares as a version, not as a string
        return False
    try:
        from torch._inductor import list_options  # takes seconds, so only when something is compiled
    except ImportError:
        return False
    return "combo_kernels" in list_options()


def expect_steps_outside_capture(optimizer: torch.optim.Optimizer) -> None:
    """Keep a capturable Adam from warning that it takes steps outside of a CUDA graph, as it does before a capture.

    Where torch does not look at this attribute, there is one warning.
    """
    optimizer._warned_capturable_if_run_uncaptured = True


def replace_cuda_generator_state(state: Tensor) -> None:
    """Give the current CUDA device's generator this state.

    As a new object, if torch has a way to do that: after a capture that failed, the old one believes to be captured
    still.
    """
    device = torch.cuda.current_device()
    generator = torch.cuda.default_generators[device]
    if not hasattr(generator, "graphsafe_set_state"):
        torch.cuda.set_rng_state(state, device)
        return
    fresh = torch.Generator(torch.device("cuda", device))
    fresh.set_state(state)
    generator.graphsafe_set_state(fresh.graphsafe_get_state())
