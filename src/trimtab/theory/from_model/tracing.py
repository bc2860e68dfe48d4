"""Tracing with torch.fx: the graph of a module, the shapes in it, and which modules mean field knows."""

import math
import operator
from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from trimtab import _torch
from trimtab.norms import RunningNorm
from trimtab.theory.mean_field.activations import Activation, Array, LeakyReLU, Quadrature
from trimtab.theory.mean_field.positions import Sites, Window

BATCH = (*_torch.BATCH_NORMS, RunningNorm)
SAMPLE = (nn.LayerNorm, nn.GroupNorm, *_torch.INSTANCE_NORMS)
CONV = (nn.Conv1d, nn.Conv2d)
MAX = (nn.MaxPool1d, nn.MaxPool2d)
MEAN = (nn.AvgPool1d, nn.AvgPool2d)
WHOLE = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
DROPOUT = (*_torch.DROPOUTS, nn.Identity)
_ELEMENTWISE = (
    *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.SiLU, nn.GELU, nn.ELU, nn.CELU, nn.SELU, nn.Mish, nn.Softsign),
    *(nn.Hardtanh, nn.ReLU6, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Tanhshrink, nn.Softshrink),
)
LEAVES = (nn.Linear, *CONV, *BATCH, *SAMPLE)


def _like(kind: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Makes the module that does the same as a function, from the function's arguments after the first."""
    return lambda _x, *args, **kwargs: kind(*args, **kwargs)


# What functions and methods of tensors mean, as the module that does the same.
FUNCTIONS: dict[Any, Callable[..., nn.Module]] = {
    **dict.fromkeys((torch.relu, F.relu, "relu", "relu_"), _like(nn.ReLU)),
    **dict.fromkeys((torch.tanh, F.tanh, "tanh"), _like(nn.Tanh)),
    **dict.fromkeys((torch.sigmoid, F.sigmoid, "sigmoid"), _like(nn.Sigmoid)),
    F.leaky_relu: _like(nn.LeakyReLU),
    F.gelu: _like(nn.GELU),
    F.silu: _like(nn.SiLU),
    F.softplus: _like(nn.Softplus),
    F.elu: _like(nn.ELU),
    F.max_pool2d: _like(nn.MaxPool2d),
    F.avg_pool2d: _like(nn.AvgPool2d),
    F.adaptive_avg_pool2d: _like(nn.AdaptiveAvgPool2d),
    F.dropout: lambda _x, p=0.5, *_, **__: nn.Dropout(p),
    **dict.fromkeys(("flatten", "view", "reshape", torch.flatten, torch.reshape), lambda *_, **__: nn.Flatten()),
}
SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")
PRODUCTS = (operator.mul, operator.imul, torch.mul, "mul", "mul_", operator.truediv, torch.div, "div")


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, LEAVES) or super().is_leaf_module(m, module_qualified_name)


class _Shapes(fx.Interpreter):
    """Runs the network once and records the shapes."""

    shapes: dict[fx.Node, tuple[int, ...]]

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self.shapes[n] = tuple(value.shape)
        return value


def channels_and_size(shape: tuple[int, ...]) -> tuple[int, Sites]:
    """Channels, height and width of one sample's shape; further dimensions count as width."""
    if len(shape) < 2:
        return math.prod(shape), (1, 1)
    if len(shape) == 2:
        return shape[0], (1, shape[1])
    return shape[0], (shape[1], math.prod(shape[2:]))


def activation_of(module: nn.Module) -> Activation | None:
    """The activation function that a module applies; None if it is no activation."""
    if isinstance(module, nn.ReLU):
        return LeakyReLU(0.0)
    if isinstance(module, nn.LeakyReLU):
        return LeakyReLU(module.negative_slope)
    if not isinstance(module, _ELEMENTWISE):
        return None
    if getattr(module, "inplace", False):  # of which a derivative cannot be taken at a leaf
        module = copy(module)
        module.inplace = False

    def function(x: Array) -> Array:
        with torch.no_grad():
            return np.asarray(module(torch.from_numpy(np.ascontiguousarray(x))).numpy())

    def derivative(x: Array) -> Array:
        with torch.enable_grad():
            point = torch.from_numpy(np.array(x)).requires_grad_()
            (slope,) = torch.autograd.grad(module(point).sum(), point)
        return np.asarray(slope.numpy())

    return Quadrature(function, derivative)


def traced(model: nn.Module, input_shape: tuple[int, ...]) -> tuple[fx.GraphModule, dict[fx.Node, tuple[int, ...]]]:
    """The graph and the shapes of its values for two samples.

    Raises:
        ValueError: If it cannot be traced, or does not take such inputs.
    """
    try:
        graph = _Tracer().trace(model)
        module = fx.GraphModule(model, graph)
    except Exception as error:  # torch.fx lets through whatever the model's code raises when given a proxy
        reason = str(error).split("\n")[0]
        raise ValueError(f"model cannot be traced by torch.fx, which predict needs: {reason}") from error
    shapes = _Shapes(module)
    shapes.shapes = {}
    like = next(iter(model.parameters()), torch.zeros(()))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[like.device] if like.is_cuda else []):
            shapes.run(torch.zeros(2, *input_shape, dtype=like.dtype, device=like.device))
    except Exception as error:
        reason = str(error).split("\n")[0]
        raise ValueError(f"model does not take inputs of input_shape {input_shape}: {reason}") from error
    return module, shapes.shapes


def conv_window(layer: nn.Conv1d | nn.Conv2d) -> Window:
    """Kernel, stride and padding of a convolution; in one dimension, those of the width."""
    kernel, stride, dilation = (_two(x) for x in (layer.kernel_size, layer.stride, layer.dilation))
    if layer.padding == "same":
        padding = tuple(d * (k - 1) // 2 for d, k in zip(dilation, kernel, strict=True))
    else:
        padding = (0, 0) if layer.padding == "valid" else _two(layer.padding, fill=0)
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
