"""Taking BatchNorm out of a model, so that BNP can do its work instead."""

import copy
import math
import operator
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from trimtab import _torch
from trimtab.bnp.layers import layer_type

# What turns a constant added to a channel into a constant added to a channel, so that a bias before it is taken up
# by a BatchNorm after it.
_PASSING_MODULES = (
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.Upsample, *_torch.DROPOUTS),
    *(*_torch.AVERAGE_POOLS, *_torch.MAX_POOLS),
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

_PLAIN_FORWARDS = {nn.BatchNorm1d.forward, nn.SyncBatchNorm.forward}
_OF_BATCHNORM = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}


def without_batchnorm(model: nn.Module) -> nn.Module:
    """A copy of the model without BatchNorm, with biases where BatchNorm had replaced them.

    Each BatchNorm layer becomes an `nn.Identity`, so that names and calls stay as they were. A BatchNorm layer that has
    its activation or dropout within it, as `BatchNormAct2d` of timm, becomes these. A layer whose output a BatchNorm
    centred needs no bias and often has none; it gets one here, of zeros, since without a bias BNP can scale but not
    centre. All other parameters keep their values. What the BatchNorm layers had learned is left out, not folded into
    the weights: this is for training from the start.

    Where BatchNorm stood is read off the model's graph, if torch.fx can trace it; a BatchNorm that is not in the
    graph is taken to follow the nearest layer of its width that was defined before it.

    Args:
        model: Any module; it is not changed. Make the optimizer for the copy, which has new parameters.

    Raises:
        TypeError: If `model` is not a module.
        ValueError: If it has lazy layers without a shape, or a BatchNorm that does more than normalize and call its
            submodules.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"without_batchnorm takes a torch.nn.Module, not {type(model).__name__}.")
    if any(isinstance(p, nn.UninitializedParameter) for p in model.parameters()):
        raise ValueError("The model has lazy layers without a shape yet; run a batch through it first.")
    known: dict[Any, bool] = {}
    for name, module in model.named_modules():
        if not is_batchnorm(module):
            continue
        if (kind := _description(module)) not in known:
            known[kind] = is_known_batchnorm(module)
        if not known[kind]:
            raise ValueError(
                f"{name or 'The model'} is a {type(module).__name__}, which is more than BatchNorm; replace it by hand."
            )
    graph = _traced(copy.deepcopy(model))  # a copy, since tracing runs the model's own code
    model = copy.deepcopy(model)
    modules = dict(model.named_modules())
    overwritten = {str(node.target) for node in _batchnorms(graph, modules) if _is_overwritten(node, modules)}
    for name in _layers_before_batchnorm(graph, model):
        _add_bias(model.get_submodule(name))
    return _without(model, overwritten)


def _add_bias(layer: nn.Module) -> None:
    weight, kind = _torch.parameters_of(layer).get("weight"), layer_type(layer)
    assert weight is not None and kind is not None
    groups, outputs = kind.view(layer, weight.detach().contiguous()).shape[:2]
    layer.bias = nn.Parameter(weight.detach().new_zeros(groups * outputs), requires_grad=weight.requires_grad)


def is_batchnorm(module: nn.Module) -> bool:
    """Whether a module is a BatchNorm of torch, or a class of a user that is one."""
    return isinstance(module, _torch.BATCH_NORMS)


class Clone(nn.Identity):
    """In the place of a BatchNorm whose output is overwritten, while something else reads its input."""

    def forward(self, input: Tensor) -> Tensor:
        """A copy of the input."""
        return input.clone()


def _without(model: nn.Module, overwritten: set[str]) -> nn.Module:
    """The model with each BatchNorm in it replaced by what it does beside normalizing."""
    if is_batchnorm(model):
        return rest_of_batchnorm(model)
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if is_batchnorm(module):
            rest = rest_of_batchnorm(module)
            copied = name in overwritten and isinstance(rest, nn.Identity)
            model.set_submodule(name, Clone().train(module.training) if copied else rest)
    return model


def rest_of_batchnorm(batchnorm: nn.Module) -> nn.Module:
    """What is left of a BatchNorm that does not normalize: its submodules under their names, or nothing."""
    children = OrderedDict(batchnorm.named_children())
    if all(isinstance(child, nn.Identity) for child in children.values()):
        return nn.Identity().train(batchnorm.training)
    for module in batchnorm.modules():
        if getattr(module, "inplace", False) is True:  # the input, unlike a normalized copy, may have other readers
            module.inplace = False  # type: ignore[assignment]
    rest = nn.Sequential(children)
    rest.training = batchnorm.training  # of itself alone: its submodules have modes of their own
    return rest


def _description(batchnorm: nn.Module) -> tuple[Any, ...]:
    """What is equal for BatchNorm layers that differ in their width and their tensors only."""
    options = {name: value for name, value in vars(batchnorm).items() if isinstance(value, bool | int | float | str)}
    options.pop("num_features", None)
    return type(batchnorm), repr(options), repr(list(batchnorm.named_children()))


def is_known_batchnorm(batchnorm: nn.Module) -> bool:
    """Whether a BatchNorm only normalizes, and then calls its submodules in the order of their registration.

    A forward that is not torch's, as that of `BatchNormAct2d` of timm, is compared with this on random inputs.
    """
    if type(batchnorm).forward in _PLAIN_FORWARDS:
        return True
    own = [*batchnorm.named_parameters(recurse=False), *batchnorm.named_buffers(recurse=False)]
    if not {name for name, _ in own} <= _OF_BATCHNORM:
        return False
    layer: Any = copy.deepcopy(batchnorm)
    layer = layer.to_empty(device="cpu") if any(tensor.is_meta for _, tensor in own) else layer.cpu()
    layer.float().reset_parameters()
    rest = rest_of_batchnorm(copy.deepcopy(layer))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        # Evaluation first: training moves the running averages.
        return all(_agree(layer.train(mode), rest.train(mode)) for mode in (False, True))


def _agree(layer: Any, rest: nn.Module) -> bool:
    """Whether a BatchNorm layer as at the start gives the same as plain normalization followed by another module."""
    for space in ((4, 4), (), (4,), (4, 4, 4)):
        x = torch.randn(4, layer.num_features, *space)
        normalized = x / math.sqrt(1 + layer.eps)
        if layer.training or layer.running_mean is None:
            normalized = F.batch_norm(x, None, None, training=True, eps=layer.eps)
        results = []
        for module, value in ((layer, x), (rest, normalized)):
            torch.default_generator.manual_seed(0)  # for dropout; torch.manual_seed would seed GPUs too
            with suppress(Exception):  # whatever the layer's own code raises for inputs of other dimensions
                results.append(module(value))
        if len(results) == 2:
            return results[0].shape == x.shape and torch.allclose(results[0], results[1], atol=1e-5)
    return False


def _lacks_bias(module: nn.Module) -> bool:
    """Whether it is a layer that could have a bias, of its own weight's kind, and has none."""
    if layer_type(module) is None or _torch.parameters_of(module).get("weight") is None:
        return False
    return "bias" not in vars(module) and getattr(module, "bias", module) is None


def _traced(model: nn.Module) -> fx.Graph:
    """The graph of a model, empty if torch.fx cannot trace it."""
    try:
        with torch.random.fork_rng(devices=[]):
            return BatchNormTracer().trace(model)
    except Exception:  # whatever a model's own code raises when it is run on proxies
        return fx.Graph()


def _batchnorms(graph: fx.Graph, modules: dict[str, nn.Module]) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "call_module" and is_batchnorm(modules[str(node.target)])]


def _is_overwritten(batchnorm: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether something works in place on a BatchNorm's output, while its input is read elsewhere too."""

    def in_place(node: fx.Node) -> bool:
        if node.op == "call_module":
            return getattr(modules[str(node.target)], "inplace", False) is True
        name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
        return node.kwargs.get("inplace") is True or name.endswith("_") or name in ("iadd", "isub", "imul")

    shared = any(len(source.users) > 1 or source.op == "placeholder" for source in batchnorm.all_input_nodes)
    return shared and any(map(in_place, batchnorm.users))


def _layers_before_batchnorm(graph: fx.Graph, model: nn.Module) -> set[str]:
    """The names of the layers without bias whose output a BatchNorm centres."""
    modules = dict(model.named_modules())
    nodes = _batchnorms(graph, modules)
    found = {name for node in nodes for name in _sources(node, modules)}
    traced = {str(node.target) for node in nodes}
    return found | set(_layers_defined_before_batchnorm(model, passed=traced, taken=found))


class BatchNormTracer(fx.Tracer):
    """Traces into everything that could contain a BatchNorm; layers and BatchNorms themselves are leaves."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Layers of registered types are leaves wherever they were defined."""
        if layer_type(m) is not None or is_batchnorm(m):
            return True
        contains = any(is_batchnorm(child) for child in m.modules())
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
        elif is_batchnorm(module) and name not in passed:
            fitting = [(n, layer) for n, layer in free if _width(layer) == module.num_features]
            if fitting:
                free.remove(fitting[-1])
                yield fitting[-1][0]


def _width(layer: nn.Module) -> object:
    return getattr(layer, "out_features", getattr(layer, "out_channels", None))
