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
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.Upsample, dropout._DropoutNd),
    *(pooling._AvgPoolNd, pooling._AdaptiveAvgPoolNd, pooling._MaxPoolNd),
)
_PASSING_FUNCTIONS = {
    *(operator.add, operator.iadd, operator.sub, operator.getitem, torch.add, torch.sub, torch.cat, torch.concat),
    *(torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze, torch.transpose, torch.permute, torch.movedim),
    *(torch.chunk, torch.split, torch.mean, F.dropout, F.interpolate),
    *(F.avg_pool1d, F.avg_pool2d, F.avg_pool3d, F.max_pool1d, F.max_pool2d, F.max_pool3d),
    *(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d),
}
_PASSING_METHODS = {
    *("add", "add_", "sub", "flatten", "view", "reshape", "squeeze", "unsqueeze", "transpose", "permute", "movedim"),
    *("chunk", "split", "mean", "contiguous", "clone", "float", "double", "half", "bfloat16", "to", "type"),
}

_PLAIN_FORWARDS = {_BatchNorm.forward, nn.SyncBatchNorm.forward}


def without_batchnorm(model: nn.Module) -> nn.Module:
    """A copy of the model without BatchNorm, with biases where BatchNorm had replaced them.

    Each BatchNorm layer becomes an `nn.Identity`, so that names and calls stay as they were. A layer whose
    output a BatchNorm centred needs no bias and often has none; it gets one here, of zeros, since without a
    bias BNP can scale but not centre. All other parameters keep their values. What the BatchNorm layers had
    learned is left out, not folded into the weights: this is for training from the start.

    Where BatchNorm stood is read off the model's graph, if torch.fx can trace it; a BatchNorm that is not in the
    graph is taken to follow the nearest layer of its width that was defined before it.

    Args:
        model: Any module; it is not changed. Make the optimizer for the copy, which has new parameters.

    Raises:
        TypeError: If `model` is not a module.
        ValueError: If it has lazy layers without a shape, or a kind of BatchNorm that does more than normalize.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"without_batchnorm takes a torch.nn.Module, not {type(model).__name__}.")
    if any(isinstance(p, nn.UninitializedParameter) for p in model.parameters()):
        raise ValueError("The model has lazy layers without a shape yet; run a batch through it first.")
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and type(module).forward not in _PLAIN_FORWARDS:
            raise ValueError(
                f"{name or 'The model'} is a {type(module).__name__}, which is more than BatchNorm; replace it by hand."
            )
    names = _layers_before_batchnorm(copy.deepcopy(model))  # a copy, since tracing runs the model's own code
    model = copy.deepcopy(model)
    for name in names:
        _add_bias(model.get_submodule(name))
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


def _layers_before_batchnorm(model: nn.Module) -> set[str]:
    """The names of the layers without bias whose output a BatchNorm centres."""
    modules = dict(model.named_modules())
    found: set[str] = set()
    traced: set[str] = set()
    try:
        with torch.random.fork_rng(devices=[]):
            graph = _Tracer().trace(model)
    except Exception:  # whatever a model's own code raises when it is run on proxies
        graph = fx.Graph()
    for node in graph.nodes:
        if node.op == "call_module" and isinstance(modules[node.target], _BatchNorm):
            traced.add(node.target)
            found.update(_sources(node, modules))
    return found | set(_layers_defined_before_batchnorm(model, passed=traced, taken=found))


class _Tracer(fx.Tracer):
    """Traces into everything that could contain a BatchNorm; layers and BatchNorms themselves are leaves."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Layers of registered types are leaves wherever they were defined."""
        if layer_type(m) is not None or isinstance(m, _BatchNorm):
            return True
        contains = any(isinstance(child, _BatchNorm) for child in m.modules())
        return not contains and super().is_leaf_module(m, module_qualified_name)


def _sources(batchnorm: fx.Node, modules: dict[str, nn.Module]) -> Iterator[str]:
    """The layers without bias whose output reaches this BatchNorm up to constants."""
    nodes = list(batchnorm.all_input_nodes)
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if node.op == "call_module":
            module = modules[str(node.target)]
            passing = isinstance(module, _PASSING_MODULES)
            if _lacks_bias(module):
                yield str(node.target)
        else:
            passing = node.op == "call_function" and node.target in _PASSING_FUNCTIONS
            passing = passing or (node.op == "call_method" and node.target in _PASSING_METHODS)
        if passing:
            fresh = [source for source in node.all_input_nodes if source not in seen]
            seen.update(fresh)
            nodes += fresh


def _layers_defined_before_batchnorm(model: nn.Module, passed: set[str], taken: set[str]) -> Iterator[str]:
    """For BatchNorms that no trace has passed: the nearest free layer of its width defined before each."""
    free: list[tuple[str, nn.Module]] = []
    for name, module in model.named_modules():
        if _lacks_bias(module) and name not in taken:
            free.append((name, module))
        elif isinstance(module, _BatchNorm) and name not in passed:
            fitting = [(n, layer) for n, layer in free if _width(layer) == module.num_features]
            if fitting:
                free.remove(fitting[-1])
                yield fitting[-1][0]


def _width(layer: nn.Module) -> object:
    return getattr(layer, "out_features", getattr(layer, "out_channels", None))
