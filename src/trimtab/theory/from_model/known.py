"""Which modules and functions mean field knows, and what their options say."""

import operator
from typing import Any

from torch import nn

from trimtab import _torch
from trimtab.norms import RunningNorm
from trimtab.theory.mean_field.activations import Activation, LeakyReLU
from trimtab.theory.mean_field.positions import Sites, Window

BATCH = (*_torch.BATCH_NORMS, RunningNorm)
SAMPLE = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, *_torch.INSTANCE_NORMS)
CONV = (nn.Conv1d, nn.Conv2d)
MAX = (nn.MaxPool1d, nn.MaxPool2d)
MEAN = (nn.AvgPool1d, nn.AvgPool2d)
WHOLE = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
DROPOUT = (*_torch.DROPOUTS, nn.Identity)
ELEMENTWISE = (
    *(nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.SiLU, nn.GELU, nn.ELU, nn.CELU, nn.SELU, nn.Mish),
    *(nn.Softsign, nn.Hardtanh, nn.ReLU6, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Tanhshrink, nn.Softshrink),
    *(nn.Hardshrink, nn.Threshold),
)
LEAVES = (nn.Linear, *CONV, *BATCH, *SAMPLE)

# Functions and methods of each entry, beside numbers, by their names without an underscore at the end.
ENTRYWISE = frozenset(
    [
        "relu",
        "relu6",
        "leaky_relu",
        "tanh",
        "sigmoid",
        "softplus",
        "silu",
        "gelu",
        "elu",
        "celu",
        "selu",
        "mish",
        "softsign",
        "hardtanh",
        "hardswish",
        "hardsigmoid",
        "logsigmoid",
        "log_sigmoid",
        "tanhshrink",
        "softshrink",
        "hardshrink",
        "threshold",
        "exp",
        "expm1",
        "log",
        "log1p",
        "sqrt",
        "rsqrt",
        "abs",
        "neg",
        "negative",
        "positive",
        "square",
        "pow",
        "clamp",
        "clamp_min",
        "clamp_max",
        "clip",
        "sin",
        "cos",
        "erf",
        "reciprocal",
        "add",
        "sub",
        "mul",
        "div",
        "truediv",
        "subtract",
        "multiply",
        "divide",
        "true_divide",
        "rsub",
        "iadd",
        "isub",
        "imul",
        "itruediv",
        "maximum",
        "minimum",
        "sign",
        "floor",
        "ceil",
        "round",
    ]
)
SUMS = {"add": 1.0, "iadd": 1.0, "sub": -1.0, "isub": -1.0, "subtract": -1.0}
PRODUCTS = frozenset(["mul", "imul", "multiply"])
QUOTIENTS = frozenset(["div", "truediv", "itruediv", "divide", "true_divide"])
UNCHANGED = frozenset(["contiguous", "clone", "to", "type", "float", "double", "half", "bfloat16", "type_as"])
RESHAPES = frozenset(["view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "ravel"])
PERMUTATIONS = frozenset(["permute", "transpose", "movedim", "moveaxis", "swapaxes", "swapdims"])
CUTS = frozenset(["chunk", "split", "unbind"])
JOINS = frozenset(["cat", "concat", "concatenate"])

# What functions mean, as the module that does the same with the arguments after the first.
LIKE = {
    "max_pool1d": nn.MaxPool1d,
    "max_pool2d": nn.MaxPool2d,
    "avg_pool1d": nn.AvgPool1d,
    "avg_pool2d": nn.AvgPool2d,
    "adaptive_avg_pool1d": nn.AdaptiveAvgPool1d,
    "adaptive_avg_pool2d": nn.AdaptiveAvgPool2d,
}
_TORCH = ("torch", "_operator")


def name_of(target: Any) -> str:
    """The name of a function of torch or a method, without an underscore at the end; of others with their module."""
    if isinstance(target, str):
        return target.rstrip("_")
    name = str(getattr(target, "__name__", target))
    module = getattr(target, "__module__", None) or "torch"
    if module.split(".")[0] not in _TORCH:
        return f"{module}.{name}"
    return name.strip("_")


def is_in_place(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function or method overwrites its first argument."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if target in (operator.iadd, operator.isub, operator.imul, operator.itruediv):
        return True
    told = len(args) > 1 and args[-1] is True and name_of(target) in ENTRYWISE
    return told or name.endswith("_") or kwargs.get("inplace") is True


def activation_of(module: nn.Module) -> Activation | None:
    """The activation that a module applies, if its expectations are known in closed form."""
    if isinstance(module, nn.ReLU):
        return LeakyReLU(0.0)
    return LeakyReLU(module.negative_slope) if isinstance(module, nn.LeakyReLU) else None


def conv_window(options: Any) -> Window:
    """Kernel, stride and padding of a convolution; in one dimension, those of the width."""
    kernel, stride, dilation = (_two(x) for x in (options.kernel_size, options.stride, options.dilation))
    if options.padding == "same":
        padding = tuple(d * (k - 1) // 2 for d, k in zip(dilation, kernel, strict=True))
    else:
        padding = (0, 0) if options.padding == "valid" else _two(options.padding, fill=0)
    return Window(kernel, stride, (padding[0], padding[1]), dilation)


def pool_window(module: Any) -> Window:
    """Kernel, stride and padding of a pooling layer."""
    line = isinstance(module, nn.MaxPool1d | nn.AvgPool1d)
    kernel = _two((module.kernel_size,) if line and isinstance(module.kernel_size, int) else module.kernel_size)
    given = module.stride if module.stride is not None else module.kernel_size
    stride = _two((given,) if line and isinstance(given, int) else given)
    padding = _two((module.padding,) if line and isinstance(module.padding, int) else module.padding, fill=0)
    return Window(kernel, stride, padding)


def _two(value: Any, fill: int = 1) -> Sites:
    """Height and width; one number counts for both, a tuple of one for the width alone."""
    if isinstance(value, int):
        return value, value
    return (fill, value[0]) if len(value) == 1 else (value[0], value[1])
