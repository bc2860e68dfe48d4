"""Reading calls of functions and of methods of tensors."""

import operator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx, nn

from trimtab.theory.from_model.arithmetic import ArithmeticReader
from trimtab.theory.from_model.axes import channels, permuted, same, sites
from trimtab.theory.from_model.known import (
    CUTS,
    ENTRYWISE,
    JOINS,
    LIKE,
    PERMUTATIONS,
    RESHAPES,
    UNCHANGED,
    name_of,
)
from trimtab.theory.from_model.modules import Read, shape_of
from trimtab.theory.from_model.values import Value
from trimtab.theory.mean_field.joining import Reshape
from trimtab.theory.mean_field.operations import MeanPool
from trimtab.theory.mean_field.positions import Window


class FunctionReader(ArithmeticReader):
    """Reads traced calls of any kind."""

    def read(self, node: fx.Node) -> Read:
        """Read a node, of which one input or more was read before."""
        values = [self.values[x] for x in node.all_input_nodes if x in self.values]
        x = values[0]
        if isinstance(x, list):
            return self._entry(node, x)
        if node.op == "call_module":
            name = str(node.target)
            first = self.values.get(node.args[0]) if node.args and isinstance(node.args[0], fx.Node) else x
            return self._module(node, name, self._trace.modules[name], first if isinstance(first, Value) else x)
        if not node.args and "input" in node.kwargs:
            node.args, node.kwargs = (node.kwargs["input"],), {k: v for k, v in node.kwargs.items() if k != "input"}
        name = name_of(node.target)
        tensors = [value for value in values if isinstance(value, Value)]
        if node.args and len(tensors) == len(values) == 1 and (found := self._of_one(node, name, x)) is not None:
            return found
        if name in JOINS:
            return self._join(node, tensors)
        if name in ENTRYWISE and len(tensors) == len(values) == 2:
            return self._of_two(node, name, tensors[0], tensors[1])
        return self._unknown(node, name, x)

    def _entry(self, node: fx.Node, entries: list[Value | None]) -> Read:
        """Read `tuple[i]`."""
        index = node.args[1] if node.target is operator.getitem else None
        found = entries[index] if isinstance(index, int) else None
        return found or self._unknown(node, name_of(node.target), next(x for x in entries if x is not None))

    def _of_one(self, node: fx.Node, name: str, x: Value) -> Read | None:
        """Read a function of one value, constants aside; None if it is no such function."""
        if name in UNCHANGED:
            return x
        if name in RESHAPES:
            return self._reshape(node, x)
        if name in PERMUTATIONS:
            return self._permute(node, x)
        if name in CUTS:
            return self._cut(node, name, x)
        if name in ENTRYWISE:
            return self._entrywise(node, name, x)
        if name in LIKE:
            module = LIKE[name](*self._arguments(node)[1:], **node.kwargs)
            return self._module(node, self._name(node), module, x)
        if name == "mean":
            return self._mean(node, x)
        if name == "getitem":
            return self._index(node, x)
        if name in ("linear", "matmul", "conv1d", "conv2d", "batch_norm", "layer_norm", "group_norm"):
            return self._layer(node, name, x)
        if name.endswith("pad") and same(x.shape, x.roles, "bc" + "p" * (len(x.shape) - 2)):
            size = sites(x.shape, x.roles)
            if size == sites(shape_of(node), x.roles) and len(node.args) < 4 and not node.kwargs.get("value"):
                count = shape_of(node)[1]
                share = channels(x.shape, x.roles) / count
                place = self._builder.put(Reshape(size, share), (self._builder.place(x),), size)
                return self._builder.value(place, count, shape_of(node), x.roles)
        if name.rpartition(".")[2] in ("dropout", "dropout1d", "dropout2d", "stochastic_depth"):
            if node.kwargs.get("p", node.args[1] if len(node.args) > 1 else 0.5):
                self._builder.note_dropping(self._name(node))
            return x
        return None

    def _layer(self, node: fx.Node, name: str, x: Value) -> Read | None:
        """Read a function with weights that do not depend on the input."""
        if not isinstance(node.args[0], fx.Node) or node.args[0] not in self.values:
            return None
        names = {
            "linear": ["weight", "bias"],
            "matmul": ["weight"],
            "batch_norm": ["mean", "variance", "weight", "bias", "training", "momentum", "eps"],
            "layer_norm": ["normalized_shape", "weight", "bias", "eps"],
            "group_norm": ["num_groups", "weight", "bias", "eps"],
        }.get(name, ["weight", "bias", "stride", "padding", "dilation", "groups"])
        given = dict(zip(names, self._arguments(node)[1:], strict=False))
        given |= {key: self._constant(value) for key, value in node.kwargs.items()}
        weight, bias, eps = given.get("weight"), given.get("bias"), given.get("eps", 1e-5)
        title = self._layer_name(node)
        if name in ("linear", "matmul"):
            if not isinstance(weight, Tensor) or weight.ndim != 2:
                return None
            return self._affine(node, title, x, weight.T if name == "matmul" else weight, bias)
        if name in ("conv1d", "conv2d"):
            assert isinstance(weight, Tensor)
            line = name == "conv1d"
            told = {key: given.get(key, default) for key, default in (("stride", 1), ("padding", 0), ("dilation", 1))}
            told = {key: (value,) if line and isinstance(value, int) else value for key, value in told.items()}
            options = SimpleNamespace(kernel_size=tuple(weight.shape[2:]), **told)
            return self._convolution(node, title, x, weight, bias, options)
        if name == "batch_norm":
            return self._batch_norm(node, title, x, weight, bias, eps=eps)
        module: Any = nn.GroupNorm(given.get("num_groups", 1), x.shape[1], eps, affine=False)
        if name == "layer_norm":
            module = nn.LayerNorm(given["normalized_shape"], eps, elementwise_affine=False)
        vars(module).update(weight=weight, bias=bias)
        return self._sample_norm(node, title, x, module)

    def _layer_name(self, node: fx.Node) -> str:
        """The name of the module whose parameter a function uses, or that of its own."""
        sources = [x for x in node.all_input_nodes if x not in self.values]
        while sources:
            source = sources.pop(0)
            if source.op == "get_attr":
                found = str(source.target).rpartition(".")[0] or str(source.target)
                self._count(found)
                return found
            sources += source.all_input_nodes
        return self._name(node)

    def _join(self, node: fx.Node, values: list[Value]) -> Read:
        listed: Any = node.args[0] if node.args else node.kwargs.get("tensors", ())
        x = values[0]
        dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
        each = [self._source(item) for item in listed] if isinstance(listed, tuple | list) else []
        if not isinstance(dim, int) or not all(isinstance(value, Value) for value in each) or not each:
            return self._unknown(node, "a concatenation with a constant", x)
        if x.roles[dim] != "c" or x.roles.count("c") != 1 or any(value.roles != x.roles for value in values):
            return self._unknown(node, "a concatenation along positions", x)
        return Value(tuple(part for value in each for part in value.parts), shape_of(node), x.roles)

    def _permute(self, node: fx.Node, x: Value) -> Read:
        numbers = torch.empty([2 + d for d in range(len(x.shape))], device="meta")  # a dimension is known by its size
        args = [numbers, *node.args[1:]]
        call = getattr(numbers, str(node.target)) if node.op == "call_method" else None
        moved = call(*args[1:], **node.kwargs) if call else node.target(*args, **node.kwargs)  # type: ignore[operator]
        roles = permuted(x.roles, [n - 2 for n in moved.shape])
        if roles is None:
            return self._unknown(node, "another order of positions", x)
        return replace(x, shape=shape_of(node), roles=roles)

    def _cut(self, node: fx.Node, name: str, x: Value) -> Read:
        default = 0
        given = node.args[1:] if name == "unbind" else node.args[2:]
        dim = node.kwargs.get("dim", given[0] if given else default)
        shapes: list[tuple[int, ...]] = node.meta["value"]
        if not isinstance(dim, int) or x.roles[dim] != "c":
            return self._unknown(node, f"{name} along positions", x)
        roles = list(x.roles)
        if name == "unbind":
            del roles[dim]
        found: list[Value | None] = []
        start = 0
        for shape in shapes:
            count = channels(shape, "".join(roles))
            found.append(x.cut(start, count, shape, "".join(roles)))
            start += count
        return found

    def _mean(self, node: fx.Node, x: Value) -> Read | None:
        """Read a mean over positions."""
        given = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
        dims = [given] if isinstance(given, int) else list(given) if isinstance(given, tuple | list) else []
        over = {d % len(x.shape) for d in dims if isinstance(d, int)}
        positions = [d for d, role in enumerate(x.roles) if role == "p"]
        if not over or not over <= set(positions) or (len(positions) > 2 and over != set(positions)):
            return self._unknown(node, "a mean over other dimensions than positions", x)
        size = sites(x.shape, x.roles)
        each = [d in over for d in positions] if len(positions) == 2 else [True, True]
        kernel = (size[0] if each[0] else 1, size[1] if each[1] else 1)
        kept = len(shape_of(node)) == len(x.shape)
        roles = x.roles if kept else "".join(role for d, role in enumerate(x.roles) if d not in over)
        return self._each(node, x, lambda part: MeanPool(Window(kernel, kernel)), roles)

    def _index(self, node: fx.Node, x: Value) -> Read | None:
        """Read `x[...]`: some of the channels, every other position, the first position, new dimensions."""
        index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
        if any(i is Ellipsis for i in index):
            rest = len(x.shape) - sum(i is not None and i is not Ellipsis for i in index)
            at = next(k for k, i in enumerate(index) if i is Ellipsis)
            index = (*index[:at], *[slice(None)] * rest, *index[at + 1 :])
        roles, strides, cut, d = "", [], None, 0
        for i in (*index, *[slice(None)] * (len(x.shape) - sum(i is not None for i in index))):
            if i is None:
                roles += "p"
                continue
            role, n = x.roles[d], x.shape[d]
            first, last, step = (i, i + 1, 1) if isinstance(i, int) else (0, 0, 0)
            if isinstance(i, slice) and all(e is None or isinstance(e, int) for e in (i.start, i.stop, i.step)):
                first, last, step = i.indices(n)
            if role == "p" and ((first == 0 and last >= n) or (i == 0 and isinstance(i, int))):
                strides.append(n if isinstance(i, int) else step)
            elif role == "c" and step == 1 and (first, last) != (0, n) and cut is None and 0 <= first < last:
                cut = (first, last - first, n)
            elif (first, last, step) != (0, n, 1):
                return self._unknown(node, "an index", x)
            roles += "" if isinstance(i, int) else role
            d += 1
        if cut is not None:
            unit = channels(x.shape, x.roles) // cut[2]
            x = x.cut(cut[0] * unit, cut[1] * unit, x.shape, x.roles)
        if all(step == 1 for step in strides):
            return replace(x, shape=shape_of(node), roles=roles)
        if len(strides) > 2:
            return self._unknown(node, "an index", x)
        window = Window((1, 1), (strides[0] if len(strides) == 2 else 1, strides[-1]))
        return self._each(node, x, lambda part: MeanPool(window), roles)
