"""Everything trimtab uses of torch that torch does not document, and what is done where a version of torch lacks it.

No other file of trimtab names a private attribute of torch (`tests/test_private_names.py`). A name is looked up by
`_find`, which returns None where torch has no such name, and each function here has another way then, by documented
names only: slower perhaps, but right (`tests/test_missing_names.py` removes each name in turn). Classes that torch
names with an underscore are found as the common base of the public ones.
"""

import importlib.util
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

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

CONVOLUTION_METHODS = ("forward", "_conv_forward") if _find("torch.nn.Conv2d._conv_forward") else ("forward",)
"""The methods of a convolution that lead from its call to the operation."""


_PARAMETERS, _CHILDREN = "_parameters", "_modules"  # in which a module keeps what it has


class _Contents(Mapping[str, Any]):
    """What a module has by name, as it is whenever that is asked for."""

    def __init__(self, ask: Callable[[], Iterable[tuple[str, Any]]]) -> None:
        self._ask = ask

    def __getitem__(self, name: str) -> Any:
        return dict(self._ask())[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self._ask()))

    def __len__(self) -> int:
        return len(dict(self._ask()))


def parameters_of(module: nn.Module) -> Mapping[str, nn.Parameter | None]:
    """A module's own parameters by name, now and later. Asking for the attribute may compute it (parametrizations)."""
    parameters: Mapping[str, nn.Parameter | None] | None = module.__dict__.get(_PARAMETERS)
    if parameters is None:
        return _Contents(partial(module.named_parameters, recurse=False, remove_duplicate=False))
    return parameters


def children_of(module: nn.Module) -> Mapping[str, nn.Module | None]:
    """A module's own children by name, now and later."""
    children: Mapping[str, nn.Module | None] | None = module.__dict__.get(_CHILDREN)
    return _Contents(module.named_children) if children is None else children


_call_impl: Any = _find("torch.nn.Module._call_impl") or nn.Module.__call__


def calls_running(module: nn.Module) -> int:
    """How many calls of a module run in this thread: those whose frame is on the stack."""
    count, frame = 0, sys._getframe(1)
    while frame is not None:
        count += frame.f_code is _call_impl.__code__ and frame.f_locals.get("self") is module
        frame = frame.f_back  # type: ignore[assignment]
    return count


def clear_hooks(module: nn.Module) -> None:
    """Remove all hooks from a module, not from those within it."""
    for name, value in vars(module).items():
        if name.endswith("_hooks") and isinstance(value, dict):
            value.clear()


# ---- Autograd: which backward is running, and what it comes to
# Names that stand for a function of torch are that function itself: they are called for each layer in each step.

_graph_task_id: Callable[[], int] | None = _find("torch._C._current_graph_task_id")
_will_execute: Callable[[Any], bool] | None = _find("torch._C._will_engine_execute_node")
_keeps_graph: Callable[[], bool] | None = _find("torch._C._autograd._get_current_graph_task_keep_graph")

TELLS_BACKWARDS_APART = _graph_task_id is not None
"""Whether `current_backward` knows a backward that runs within another one (reentrant checkpointing) from that."""
ASKS_FOR_NODES = _graph_task_id is not None and _will_execute is not None
"""Whether `comes_to` knows its answer."""

current_backward: Callable[[], int] = _graph_task_id or (lambda: 0 if in_backward() else -1)
"""The number of the backward that is running in this thread, −1 outside one; always 0 within if torch does not say."""

comes_to: Callable[[Any], bool] = _will_execute or (lambda node: False)
"""Whether the backward that is running executes a node of the graph; only to be asked if `ASKS_FOR_NODES`.

It answers no for the node that it began with, if that is a single one.
"""

keeps_graph: Callable[[], bool] = _keeps_graph or (lambda: True)
"""Whether the backward that is running keeps its graph for another one; true if torch does not say."""

_HAS_VERSION = _find("torch.Tensor._version") is not None
version_of: Callable[[Tensor], int | None] = attrgetter("_version") if _HAS_VERSION else lambda x: None
"""A number that is another one whenever a tensor was changed in place; None if torch does not say."""

_HAS_BASE = _find("torch.Tensor._base") is not None
base_of: Callable[[Tensor], Tensor | None] = attrgetter("_base") if _HAS_BASE else lambda x: x
"""What a tensor is a view of, None if it is no view; the tensor itself if torch does not say."""


def node_of_view(y: Tensor) -> Any:
    """The node of what a tensor is a view of, or its own.

    A view that is changed in place later (Linear on three dimensions, then relu_) gets another node, and what it is a
    view of keeps the old one. If torch does not say what that is, it is below nodes that have a single operand.
    """
    node = y.grad_fn
    if _HAS_BASE:
        base = base_of(y)
        return base.grad_fn if base is not None and base.requires_grad else node
    while node is not None and len(node.next_functions) == 1:
        below = node.next_functions[0][0]
        if below is None or not below.next_functions:  # a leaf, to which others may lead too
            break
        node = below
    return node


def is_view_of(view: Tensor, x: Tensor) -> bool:
    """Whether what is written to the one is written to the other."""
    if _HAS_BASE:
        return view is x or view._base is x
    return view.is_meta or view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


_default_saved_tensor_hooks: Callable[[bool], Any] | None = _find("torch._C._autograd._top_saved_tensors_default_hooks")


packs_saved_tensors: Callable[[], Any] = (
    partial(_default_saved_tensor_hooks, False) if _default_saved_tensor_hooks else lambda: True
)
"""Something if autograd packs away what it saves, as for checkpointing; true if torch does not say."""


_is_functorch_wrapped: Callable[[Tensor], bool] | None = _find("torch._C._functorch.is_functorch_wrapped_tensor")


def _has_no_memory(x: Tensor) -> bool:
    try:
        x.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return True
    return False


is_wrapped: Callable[[Tensor], bool] = _is_functorch_wrapped or _has_no_memory
"""Whether a tensor stands for another one within torch.func."""


def is_zero_tensor(x: Tensor) -> bool:
    """Whether it is a tensor of zeros without memory, as forward-mode differentiation makes them."""
    ask = getattr(x, "_is_zerotensor", None)
    return ask is not None and bool(ask())


def in_backward() -> bool:
    """Whether a backward is running in this thread, as when checkpointing computes something again."""
    if _graph_task_id is not None:
        return _graph_task_id() != -1
    if threading.current_thread().name.startswith("Dummy-"):  # a thread of the autograd engine, for a GPU
        return True
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == torch.autograd.__name__ and frame.f_code.co_name in ("grad", "backward"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def gradients(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    along: Sequence[Tensor] | None = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> list[Tensor]:
    """torch.autograd.grad, with zeros for the inputs that the outputs do not depend on.

    In older versions these zeros require a gradient even if no graph is created.
    """
    found = torch.autograd.grad(
        outputs, inputs, along, retain_graph=retain_graph, create_graph=create_graph, materialize_grads=True
    )
    dense = [gradient.to_dense() if gradient.is_sparse else gradient for gradient in found]  # nn.Embedding(sparse=True)
    return dense if create_graph else [gradient.detach() for gradient in dense]


# ---- Many tensors at once: one launch on a GPU for all of them

_foreach_copy_ = _find("torch._foreach_copy_")
_foreach_add_ = _find("torch._foreach_add_")
_foreach_sub = _find("torch._foreach_sub")
_foreach_mul = _find("torch._foreach_mul")
_foreach_norm = _find("torch._foreach_norm")


def copy_all_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source to the target at its place; those of one type and device share a launch."""
    if _foreach_copy_ is None:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
        return
    alike: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        ours, theirs = alike.setdefault((target.dtype, target.device), ([], []))
        ours.append(target)
        theirs.append(source)
    for ours, theirs in alike.values():
        _foreach_copy_(ours, theirs)


def clone_all(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A copy of each tensor, without its graph."""
    sources = [tensor.detach() for tensor in tensors]  # not no_grad, which an interruption could leave on
    copies = [torch.empty_like(source) for source in sources]
    copy_all_(copies, sources)
    return copies


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


def multiply_all(a: Sequence[Tensor], b: Sequence[Tensor]) -> Sequence[Tensor]:
    """Each a · b, entry by entry."""
    if _foreach_mul is not None:
        return _foreach_mul(a, b)  # type: ignore[no-any-return]
    return [x * y for x, y in zip(a, b, strict=True)]


def norms(tensors: Sequence[Tensor], order: float = 2) -> Sequence[Tensor]:
    """The norm of each tensor, computed in float64; none of them may be empty if the order is infinite."""
    if _foreach_norm is not None:
        return _foreach_norm(tensors, order, torch.float64)  # type: ignore[no-any-return]
    return [torch.linalg.vector_norm(tensor, ord=order, dtype=torch.float64) for tensor in tensors]


# ---- Optimizers


def step_without_hooks(kind: type[torch.optim.Optimizer]) -> Callable[[Any], Any]:
    """The `step` of a class of optimizers without the wrapper that calls the hooks registered for all optimizers."""
    step: Any = kind.step
    hooked = getattr(step, "hooked", None)
    if hooked is None:
        hooked = "profile_hook_step" in getattr(getattr(step, "__code__", None), "co_qualname", "")
    return step.__wrapped__ if hooked else step  # type: ignore[no-any-return]


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


# ---- Fully sharded data parallel (FSDP2)


def fully_sharded(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Those of these modules to which `fully_shard` was applied."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)  # imported if it is used
    return [] if kind is None else [module for module in modules if isinstance(module, kind)]


def held_gradient(model: nn.Module, weight: nn.Parameter) -> Callable[[], bool] | None:
    """For a weight that `fully_shard` has gathered for forward and backward: whether a gradient of it is somewhere.

    It is moved on after each backward: to what is still to be reduced, or to the parameter that the optimizer holds.
    What has gathered it may be a module around the model. Where torch does not tell, the answer is always yes.

    Returns:
        A function to ask; None if it is not such a weight.
    """
    try:
        for group, each in _fsdp_parameters(model):
            if getattr(each, "_unsharded_param", None) is weight:
                return partial(_holds_gradient, group, each)
    except AttributeError:
        return (lambda: True) if fully_sharded(model.modules()) else None
    return None


def gathered_from(model: nn.Module, parameters: Collection[int]) -> set[int]:
    """The identities of what `fully_shard` gathers from parameters of these identities, as far as torch tells."""
    try:
        pairs = [(each.sharded_param, getattr(each, "_unsharded_param", None)) for _, each in _fsdp_parameters(model)]
    except AttributeError:
        return set()
    return {id(whole) for sharded, whole in pairs if id(sharded) in parameters and whole is not None}


def _fsdp_parameters(model: nn.Module) -> Iterator[tuple[Any, Any]]:
    """What FSDP knows of each parameter, with that of the group that it is gathered with."""
    everywhere = getattr(sys.modules.get("torch.distributed._composable_state"), "_module_state_mapping", ())
    for module in (*fully_sharded(model.modules()), *fully_sharded(everywhere)):
        state: Any = module._get_fsdp_state()  # type: ignore[operator]
        for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]:
            for each in () if group is None else group.fsdp_params:
                yield group, each


def _holds_gradient(group: Any, each: Any) -> bool:
    try:
        places = (each._unsharded_param.grad, each.unsharded_accumulated_grad, each.sharded_param.grad)
        return any(place is not None for place in (*places, group._partial_reduce_output))
    except AttributeError:
        return True


# ---- torch.overrides

_mode_stack: Callable[[], list[Any]] | None = _find("torch.overrides._get_current_function_mode_stack")
_pop_mode: Callable[[], Any] | None = _find("torch.overrides._pop_mode")
_push_mode: Callable[[Any], None] | None = _find("torch.overrides._push_mode")


def remove_mode(mode: TorchFunctionMode) -> None:
    """Take a mode off this thread's stack of modes, wherever in it it is; it stays if torch has no way to do that."""
    if _mode_stack is None or _pop_mode is None or _push_mode is None or mode not in _mode_stack():
        return
    above = []
    while (top := _pop_mode()) is not mode:
        above.append(top)
    for other in reversed(above):
        _push_mode(other)


# ---- torch.jit, torch.compile, torch.export

# What torch._dynamo.mark_static sets. Calling it would import the compiler, which takes seconds.
_STATIC, _MARKED = "_dynamo_static_indices", "_has_dynamo_dim_marking"


is_jit_tracing: Callable[[], Any] = _find("torch._C._get_tracing_state") or torch.jit.is_tracing  # type: ignore[attr-defined]
"""Something while torch.jit.trace runs a model, or what uses it: a graph for TensorBoard, the older ONNX export."""

is_compiling: Callable[[], bool] = torch.compiler.is_dynamo_compiling
"""Whether this code is being compiled by torch.compile."""


def is_exporting() -> bool:
    """Whether this is traced for torch.export. torch's own function of that name is always true when traced by 2.11."""
    exporting: bool = getattr(torch.compiler, "_is_exporting_flag", False)
    return exporting


def mark_static(weight: Tensor) -> bool:
    """Say that a parameter is of fixed shape, which it is for torch.compile anyway; false if somebody did so before.

    torch compares what was said of a tensor when it looks for code that it has compiled: so code that was compiled
    before this is not used with the parameter. Where torch does not compare it, it has no effect.
    """
    if hasattr(weight, _STATIC):
        return False
    setattr(weight, _STATIC, set(range(weight.ndim)))
    setattr(weight, _MARKED, True)
    return True


def unmark_static(weight: Tensor) -> None:
    """Undo `mark_static`."""
    for name in (_STATIC, _MARKED):
        if name in weight.__dict__:
            delattr(weight, name)


def was_compiled(parameter: Tensor | None) -> bool:
    """Whether it has been a module's parameter in compiled code, by the mark that torch leaves on it."""
    return getattr(parameter, "_dynamo_static_input_type", None) == "unguarded"


def has_compiled_code() -> bool:
    """Whether any compiled code has been made since the last reset; true if torch does not say."""
    frames = sys.modules.get("torch._dynamo.convert_frame")  # not there if nothing was compiled
    codes = getattr(frames, "input_codes", None)
    return frames is not None and (codes is None or bool(getattr(codes, "seen", True)))


def uncompiled(module: nn.Module) -> nn.Module:
    """The module that `torch.compile(module)` stands for; any other module is returned as it is.

    If torch does not say which, the compiled module is returned. It can be used in its place; the names of its layers
    are longer.
    """
    original = getattr(module, "_orig_mod", None)
    return original if isinstance(original, nn.Module) else module


def is_compiled(module: nn.Module) -> bool:
    """Whether calls of a module run compiled code: it is what `torch.compile` returned, or was compiled in place.

    If torch does not say, it is taken for one that is not.
    """
    return uncompiled(module) is not module or getattr(module, "_compiled_call_impl", None) is not None


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
