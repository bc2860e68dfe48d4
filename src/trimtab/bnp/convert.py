"""Taking BatchNorm out of a model, so that BNP can do its work instead."""

import copy
import operator
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.modules import dropout, pooling
from torch.nn.modules.batchnorm import _BatchNorm

from trimtab.bnp.layers import layer_type

# What turns a constant added to a channel into a constant added to a channel, so that a bias before it is taken up
# by a BatchNorm after it.
_PASSING_MODULES = (
    nn.Identity,
    nn.Flatten,
    dropout._DropoutNd,
    pooling._AvgPoolNd,
    pooling._AdaptiveAvgPoolNd,
    pooling._MaxPoolNd,
)
_PASSING_CALLS = {
    *(operator.add, operator.iadd, torch.add, torch.cat, torch.concat, torch.flatten),
    *(F.dropout, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d, F.adaptive_avg_pool2d, F.max_pool2d),
    *("add", "add_", "flatten", "view", "reshape", "contiguous", "clone"),
}


def without_batchnorm(model: nn.Module) -> nn.Module:
    """A copy of the model without BatchNorm, with biases where BatchNorm had replaced them.

    Each BatchNorm layer becomes an `nn.Identity`, so that names and calls stay as they were. A layer whose
    output a BatchNorm centred needs no bias and often has none; it gets one here, of zeros, since without a
    bias BNP can scale but not centre. All other parameters keep their values. What the BatchNorm layers had
    learned is left out, not folded into the weights: this is for training from the start.

    Where BatchNorm stood is read off the model's graph, if torch.fx can trace it; otherwise a layer counts as
    followed by the BatchNorm that comes next to it in the same module.

    Args:
        model: Any module; it is not changed. Make the optimizer for the copy, which has new parameters.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"without_batchnorm takes a torch.nn.Module, not {type(model).__name__}.")
    if any(isinstance(p, nn.UninitializedParameter) for p in model.parameters()):
        raise ValueError("The model has lazy layers without a shape yet; run a batch through it first.")
    model = copy.deepcopy(model)
    for layer in _layers_before_batchnorm(model):
        _add_bias(layer)
    return _with_identities(model)


def _add_bias(layer: nn.Module) -> None:
    weight, kind = layer._parameters["weight"], layer_type(layer)
    assert weight is not None and kind is not None
    groups, outputs = kind.units(layer, weight.detach().contiguous()).shape[:2]
    layer.bias = nn.Parameter(weight.detach().new_zeros(groups * outputs), requires_grad=weight.requires_grad)


def _with_identities(module: nn.Module) -> nn.Module:
    """The module with each BatchNorm in it replaced."""
    if isinstance(module, _BatchNorm):
        return nn.Identity().train(module.training)
    for name, child in module._modules.items():
        if child is not None:
            module._modules[name] = _with_identities(child)
    return module


def _lacks_bias(module: nn.Module) -> bool:
    """Whether it is a layer that could have a bias, of its own weight's kind, and has none."""
    parameters = module._parameters
    could = layer_type(module) is not None and parameters.get("weight") is not None and "bias" in parameters
    return could and parameters["bias"] is None


def _layers_before_batchnorm(model: nn.Module) -> list[nn.Module]:
    try:
        graph = _Tracer().trace(model)
    except Exception:  # whatever a model's own code raises when it is run on proxies
        return list(_layers_registered_before_batchnorm(model))
    modules = dict(model.named_modules())
    found: dict[int, nn.Module] = {}
    for node in graph.nodes:
        if node.op == "call_module" and isinstance(modules[node.target], _BatchNorm):
            for layer in _sources(node, modules):
                found[id(layer)] = layer
    return list(found.values())


class _Tracer(fx.Tracer):
    """Traces into everything but the layers and BatchNorms themselves."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Layers of registered types are leaves wherever they were defined."""
        leaf = layer_type(m) is not None or isinstance(m, _BatchNorm)
        return leaf or super().is_leaf_module(m, module_qualified_name)


def _sources(batchnorm: fx.Node, modules: dict[str, nn.Module]) -> Iterator[nn.Module]:
    """The layers without bias whose output reaches this BatchNorm up to constants."""
    nodes = list(batchnorm.all_input_nodes)
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        module = modules[str(node.target)] if node.op == "call_module" else None
        if module is not None and _lacks_bias(module):
            yield module
        elif node.target in _PASSING_CALLS or isinstance(module, _PASSING_MODULES):
            fresh = [source for source in node.all_input_nodes if source not in seen]
            seen.update(fresh)
            nodes += fresh


def _layers_registered_before_batchnorm(model: nn.Module) -> Iterator[nn.Module]:
    """Without a graph: each BatchNorm belongs to the nearest free layer of its width before it."""
    for parent in model.modules():
        free: list[nn.Module] = []
        for child in parent.children():
            if _lacks_bias(child):
                free.append(child)
            elif isinstance(child, _BatchNorm):
                fitting = [layer for layer in free if _width(layer) == child.num_features]
                if fitting:
                    free.remove(fitting[-1])
                    yield fitting[-1]


def _width(layer: nn.Module) -> object:
    return getattr(layer, "out_features", getattr(layer, "out_channels", None))
