"""Folding BatchNorm with its running statistics into the weights of the layers around it."""

import copy
import operator
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from trimtab import _torch
from trimtab.bnp.affine_layers import (
    LAYERS,
    apply_to_inputs,
    apply_to_outputs,
    computed_parameter,
    edge_problem,
    has_hooks,
    has_own_forward,
    inputs_of,
    outputs_of,
    scale_and_shift,
)
from trimtab.bnp.convert import BatchNormTracer, Clone, is_batchnorm, is_known_batchnorm, rest_of_batchnorm
from trimtab.bnp.fold_path import Path, refused

_HOOKED = "has hooks, which could change what passes it; remove them first"


def fold_batchnorm(model: nn.Module) -> nn.Module:
    """A copy of the model in which BatchNorm is part of the weights; in eval mode its outputs are the same.

    A BatchNorm goes into the layer before it (Linear, convolution, transposed convolution), also through dropout,
    pooling and flatten. Where an activation stands between, it goes into the layers after it: Linear, or a convolution
    that does not pad with zeros. In its place stays an `nn.Identity`, or the activation that it had within it. A layer
    without a bias gets one. Which layer follows which is read off the graph of torch.fx.

    Args:
        model: Any module; it is not changed, and its mode does not matter.

    Raises:
        TypeError: If `model` is not a module.
        ValueError: If a BatchNorm cannot be folded; the sentence names it and says why.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"fold_batchnorm takes a torch.nn.Module, not {type(model).__name__}.")
    if any(isinstance(p, nn.UninitializedParameter) for p in model.parameters()):
        raise ValueError("The model has lazy layers without a shape yet; run a batch through it first.")
    if not any(map(is_batchnorm, model.modules())):
        raise ValueError("The model has no BatchNorm layer of torch, so that there is nothing to fold.")
    if is_batchnorm(model):
        raise ValueError("The model is a BatchNorm and nothing else: there is no layer to fold it into.")
    try:
        copied = copy.deepcopy(model)
    except Exception as error:  # a tensor that was computed, as by the old weight_norm, or whatever a model holds
        raise ValueError(f"The model cannot be copied by copy.deepcopy: {_first_line(error)}.") from error
    return _Folding(copied).done()


class _FoldedForVectors(nn.Identity):
    """In the place of a BatchNorm that was folded into a Linear, which is right for (samples, features) only."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim != 2:
            raise ValueError(
                f"The BatchNorm that was here is folded into a Linear, which is right for inputs of 2 dimensions, not "
                f"for {tuple(input.shape)}."
            )
        return input


class _Folding:
    """The folding of one model, which is changed."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._graph = _traced(copy.deepcopy(model).eval())  # a copy, since tracing runs the model's own code
        self._modules = dict(model.named_modules())
        self._calls = Counter(str(node.target) for node in self._graph.nodes if node.op == "call_module")
        times = Counter(id(p) for m in model.modules() for p in m.parameters(recurse=False))
        self._shared = {parameter for parameter, count in times.items() if count > 1}
        self._read = {str(node.target) for node in self._graph.nodes if node.op == "get_attr"}
        self._done: set[fx.Node] = set()

    def done(self) -> nn.Module:
        """Fold all of them, or refuse; one may have to wait until another next to it is gone."""
        waiting = list(self._batchnorms())
        while waiting:
            problems = [(node, why) for node in waiting if (why := self._fold(node))]
            if len(problems) == len(waiting):
                node, why = problems[0]
                raise ValueError(f"{self._named(node)} cannot be folded: {why}.")
            waiting = [node for node, _ in problems]
        return self._model

    def _batchnorms(self) -> Iterator[fx.Node]:
        """The calls of BatchNorms, each of which must be a BatchNorm that is called once and by nothing else."""
        nodes = {str(node.target): node for node in self._graph.nodes if node.op == "call_module"}
        for name, module in self._modules.items():
            if not is_batchnorm(module):
                continue
            problem = ""
            if not is_known_batchnorm(module) or "forward" in vars(module):
                problem = f"it is a {type(module).__name__}, which does more than BatchNorm"
            elif name not in nodes:
                problem = "it is not called in the graph of the model in evaluation"
            else:
                problem = self._used_elsewhere(name) or (f"it {_HOOKED}" if has_hooks(module) else "")
            if problem:
                raise ValueError(f"{name} cannot be folded: {problem}.")
            yield nodes[name]

    def _used_elsewhere(self, name: str) -> str:
        """Why a module cannot be changed without changing something else."""
        module = self._modules[name]
        if self._calls[name] > 1:
            return f"it is called {self._calls[name]} times"
        if any(id(p) in self._shared for p in module.parameters(recurse=False)):
            return "it shares a parameter with another layer"
        if any(target.startswith(f"{name}.") for target in self._read):
            return "the model reads its parameters by itself"
        return ""

    def _fold(self, node: fx.Node) -> str:
        """Fold one; returns why not if it cannot be."""
        batchnorm: Any = self._modules[str(node.target)]
        try:
            scale, shift = scale_and_shift(batchnorm)
        except ValueError as error:
            return str(error)
        if len(node.all_input_nodes) != 1:
            return "it is called with more than one input"
        try:
            path, layer = self._before(node, scale, shift)
            apply_to_outputs(layer, scale, shift)
        except refused as before:
            try:
                found = list(self._after(node, scale, shift))
            except refused as after:
                return f"{before}, and {after}"
            for _, layer in found:
                repeats = inputs_of(layer) // len(scale)
                apply_to_inputs(layer, scale.repeat_interleave(repeats), shift.repeat_interleave(repeats))
            vectors = any(isinstance(layer, nn.Linear) and not path.flat for path, layer in found)
            source = node.all_input_nodes[0]
            shared = len(source.users) > 1 or source.op == "placeholder"
        else:
            vectors, shared = isinstance(layer, nn.Linear) and not path.flat, False
        self._replace(node, vectors=vectors and not self._are_vectors(node.all_input_nodes[0]), shared=shared)
        return ""

    def _replace(self, node: fx.Node, *, vectors: bool, shared: bool) -> None:
        """Put what is left in the place of a folded BatchNorm."""
        name = str(node.target)
        batchnorm = self._modules[name]
        rest = rest_of_batchnorm(batchnorm)
        # Others that read what came in shall not see what is done in place with what went out.
        parts = [*([_FoldedForVectors()] if vectors else []), *([Clone()] if shared else [])]
        parts = [part.train(batchnorm.training) for part in parts]
        if parts:
            rest = nn.Sequential(*parts, *([] if isinstance(rest, nn.Identity) else [rest]))
        for alias, module in list(self._model.named_modules(remove_duplicate=False)):
            if module is batchnorm:
                self._model.set_submodule(alias, rest)
        self._modules[name] = rest
        self._done.add(node)

    def _before(self, node: fx.Node, scale: Tensor, shift: Tensor) -> tuple[Path, nn.Module]:
        """The layer whose outputs a BatchNorm reads."""
        batchnorm: Any = self._modules[str(node.target)]
        path = Path(scale, shift, backwards=True)
        at = node.all_input_nodes[0]
        while True:
            if at.op != "placeholder" and len(_readers(at)) > 1:
                raise refused(f"before it, the output of {self._named(at)} is read by others too")
            module = self._module(at)
            if isinstance(module, LAYERS):
                break
            if not self._passes(path, at):
                raise refused(f"before it is {self._named(at)}")
            at = at.all_input_nodes[0]
        if problem := self._unfit(at) or path.misfit(batchnorm, module, outputs_of(module), outputs_of(module)):
            raise refused(f"before it, {self._named(at)} {problem}")
        return path, module

    def _after(self, node: fx.Node, scale: Tensor, shift: Tensor) -> Iterator[tuple[Path, nn.Module]]:
        """The layers that read the outputs of a BatchNorm; there may be several."""
        batchnorm: Any = self._modules[str(node.target)]
        if any(not isinstance(child, (nn.Identity, *_torch.DROPOUTS)) for child in batchnorm.children()):
            raise refused("it has an activation within it")
        paths = [(user, Path(scale, shift, backwards=False)) for user in _readers(node)]
        if not paths:
            raise refused("nothing reads its output")
        while paths:
            at, path = paths.pop()
            module = self._module(at)
            if isinstance(module, LAYERS):
                wanted = inputs_of(module)
                problem = self._unfit(at) or path.misfit(batchnorm, module, wanted, len(scale))
                if problem := problem or edge_problem(module, shift):
                    raise refused(f"after it, {self._named(at)} {problem}")
                yield path, module
            elif not self._passes(path, at):
                raise refused(f"after it is {self._named(at)}")
            elif not at.users:
                raise refused(f"nothing reads what {self._named(at)} makes of its output")
            else:
                paths += [(user, path.copy()) for user in _readers(at)]

    def _passes(self, path: Path, node: fx.Node) -> bool:
        if node in self._done:
            return all(isinstance(m, nn.Identity | nn.Sequential) for m in self._modules[str(node.target)].modules())
        module = self._module(node)
        why = path.through(node, module)
        if why == "" and module is not None and has_hooks(module):
            why = _HOOKED
        if why:
            raise refused(f"{'before' if path.backwards else 'after'} it, {self._named(node)} {why}")
        return why is not None

    def _unfit(self, node: fx.Node) -> str:
        """Why nothing can be folded into a layer."""
        name = str(node.target)
        module = self._modules[name]
        if has_own_forward(module):
            return f"is a {type(module).__name__} with a forward of its own"
        if parameter := computed_parameter(module):
            return f"has a {parameter} that is computed from other parameters"
        if has_hooks(module):
            return _HOOKED
        if len(node.args) + len(node.kwargs) != 1:
            return "is called with more than its input"
        problem = self._used_elsewhere(name)
        return problem.removeprefix("it ") if problem.startswith("it ") else problem and f"is fixed, since {problem}"

    def _are_vectors(self, node: fx.Node) -> bool:
        """Whether a value certainly has the shape (samples, features)."""
        while True:
            if Path.flattens(node, self._module(node)):
                return True
            module = self._module(node)
            kept = isinstance(module, (nn.Linear, nn.Identity, *_torch.DROPOUTS, *_torch.BATCH_NORMS))
            if not kept and type(module).__module__ != nn.ReLU.__module__ and node.target not in (F.relu, torch.relu):
                return False
            node = node.all_input_nodes[0]

    def _module(self, node: fx.Node) -> nn.Module | None:
        return self._modules[str(node.target)] if node.op == "call_module" else None

    def _named(self, node: fx.Node) -> str:
        """A node in words."""
        if node.op == "call_module":
            return f"{node.target} ({type(self._modules[str(node.target)]).__name__})"
        if node.op in ("placeholder", "output"):
            return f"the model's {'input' if node.op == 'placeholder' else 'output'}"
        if node.target in (operator.add, operator.iadd, torch.add) or node.target in ("add", "add_"):
            return "a sum"
        return f"{getattr(node.target, '__name__', node.target)}()"


def _readers(node: fx.Node) -> list[fx.Node]:
    """Who reads a value; not those who ask for its shape or type only."""
    return [user for user in node.users if not _asks_for_no_value(user)]


def _asks_for_no_value(node: fx.Node) -> bool:
    attribute = node.args[1] if node.target is getattr else node.target
    return attribute in ("size", "dim", "shape", "ndim", "dtype", "device")


def _traced(model: nn.Module) -> fx.Graph:
    """The graph of a model; modules without a BatchNorm that cannot be traced are single nodes in it."""
    try:
        with torch.random.fork_rng(devices=[]):
            try:
                return BatchNormTracer().trace(model)
            except Exception:  # whatever a model's own code raises when it is run on proxies
                return _CoarseTracer().trace(model)
    except Exception as error:
        raise ValueError(
            f"The model cannot be traced by torch.fx, so that nobody knows which layer follows which: "
            f"{_first_line(error)}."
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0].rstrip(".")


class _CoarseTracer(BatchNormTracer):
    """Looks into modules only if a BatchNorm is in them."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """All others are leaves."""
        contains = any(map(is_batchnorm, m.modules()))
        return not contains or super().is_leaf_module(m, module_qualified_name)
