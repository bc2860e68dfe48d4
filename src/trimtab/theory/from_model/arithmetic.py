"""Reading sums, products and functions of each entry."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from trimtab.theory.from_model.axes import channels, same, sites
from trimtab.theory.from_model.known import PRODUCTS, QUOTIENTS, SUMS
from trimtab.theory.from_model.layers import gain
from trimtab.theory.from_model.modules import ModuleReader, Read, shape_of
from trimtab.theory.from_model.parameters import finite_values
from trimtab.theory.from_model.values import Elementwise, Part, Value
from trimtab.theory.mean_field.activations import LeakyReLU
from trimtab.theory.mean_field.graph import Operation
from trimtab.theory.mean_field.joining import Offset, Scale


class ArithmeticReader(ModuleReader):
    """Reads traced calls of modules, and of functions of each entry."""

    def _name(self, node: fx.Node) -> str:
        within = node.meta["module"]
        return f"{within}.{node.name}" if within else node.name

    def _arguments(self, node: fx.Node) -> list[Any]:
        """The arguments, with the values of constants."""
        return [self._constant(x) for x in node.args]

    def _constant(self, x: Any) -> Any:
        if not isinstance(x, fx.Node) or x in self.values:
            return x
        return self._trace.constant(x)

    def _entrywise(self, node: fx.Node, name: str, x: Value) -> Read | None:
        """Read a function of each entry; other arguments are numbers, or constants for each channel."""
        others = [self._constant(a) for a in (*node.args, *node.kwargs.values()) if self._source(a) is not x]
        tensors = [a for a in others if isinstance(a, Tensor)]
        if any(a.numel() > 1 or a.requires_grad for a in tensors):
            return self._with_constant(node, name, x, tensors)
        call = self._call(node, x)
        function = Elementwise(call)
        if name in SUMS or name in PRODUCTS or (name in QUOTIENTS and self._source(node.args[0]) is x):
            at = [float(call(torch.tensor(float(t), dtype=torch.float64))) for t in range(3)]
            if math.isclose(at[2] - at[1], at[1] - at[0], abs_tol=1e-12) and "rounding_mode" not in node.kwargs:
                function = Elementwise(call, (at[1] - at[0], at[0]))
        elif name in ("neg", "negative"):
            function = Elementwise(call, (-1.0, 0.0))
        elif name in ("relu", "leaky_relu"):
            function = Elementwise(call, None, LeakyReLU(-float(call(torch.tensor(-1.0, dtype=torch.float64)))))
        found = x.then(function)
        if not all(part.function.is_finite() for part in found.parts):
            return self._unknown(node, f"{name}, which is not finite everywhere", x)
        return found

    def _source(self, argument: Any) -> Any:
        return self.values.get(argument) if isinstance(argument, fx.Node) else None

    def _call(self, node: fx.Node, x: Value) -> Callable[[Tensor], Tensor]:
        """The function that a node applies to each entry of x."""
        mine_now = [a for a in (*node.args, *node.kwargs.values()) if self._source(a) is x]  # before it is overwritten

        def call(entries: Tensor) -> Tensor:
            mine = entries.clone()  # it may work in place

            def resolved(argument: Any) -> Any:
                if any(argument is each for each in mine_now):
                    return mine
                value = self._constant(argument)
                return value.detach().cpu().double().reshape(()) if isinstance(value, Tensor) else value

            args = [resolved(a) for a in node.args]
            kwargs = {key: resolved(a) for key, a in node.kwargs.items()}
            target: Any = node.target
            result: Tensor = (
                getattr(args[0], target)(*args[1:], **kwargs) if node.op == "call_method" else target(*args, **kwargs)
            )
            return result

        return call

    def _with_constant(self, node: fx.Node, name: str, x: Value, tensors: list[Tensor]) -> Read | None:
        """Read x·a, x/a, x + a or x − a, for an a that has an entry for each channel."""
        first = self._source(node.args[0]) is x
        source = (node.args[1] if len(node.args) > 1 else None) if first else node.args[0]
        if len(tensors) != 1 or node.kwargs or source is None or shape_of(node) != x.shape:
            return None
        title, factor = self._parameter_name(source), name not in SUMS
        values = finite_values(title, tensors[0]).cpu()
        trained = tensors[0].requires_grad
        values = values.reshape((1,) * (len(x.shape) - values.ndim) + tuple(values.shape))
        along = {role for n, role in zip(values.shape, x.roles, strict=True) if n > 1}
        if factor and along == {"p"}:  # of what other layers take for channels
            roles = x.roles.translate(str.maketrans("cp", "pc"))
            if (place := self._builder.read_as(x, roles)) is not None:
                x, along = self._builder.value(place, channels(x.shape, roles), x.shape, roles), {"c"}
        if "b" in along or (factor and "p" in along) or (name in QUOTIENTS and (trained or not first)):
            return self._unknown(node, f"{name} with a constant for each position", x)
        if (name in SUMS and SUMS[name] < 0 and not first) or name not in {*SUMS, *PRODUCTS, *QUOTIENTS}:
            return self._unknown(node, f"{name} with a constant", x)
        if trained:
            self._count(title)
            if gain(title, tensors[0], None, self._builder.note_of) != 1.0:
                return self._unknown(node, f"{name} with what is computed from a parameter", x)
        count = channels(x.shape, x.roles)
        order = [d for letter in "bcp" for d, role in enumerate(x.roles) if role == letter]
        table = values.expand(x.shape).permute(order).reshape(-1, count, math.prod(sites(x.shape, x.roles)))[0]
        if "p" not in along:
            table = table[:, :1]
        self._builder.padded |= "p" in along
        operation: Operation = Offset(title, SUMS.get(name, 1.0) * table.numpy(), trained)
        if factor:
            table = 1 / table if name in QUOTIENTS else table
            operation = Scale(title, float(table.mean()), float(table.square().mean()), 0.0, trained)
        place = self._builder.put(operation, (self._builder.place(x),), sites(x.shape, x.roles))
        return self._builder.value(place, count, x.shape, x.roles)

    def _parameter_name(self, node: Any) -> str:
        while isinstance(node, fx.Node) and node.op != "get_attr" and node.all_input_nodes:
            node = node.all_input_nodes[0]
        return str(node.target) if isinstance(node, fx.Node) and node.op == "get_attr" else str(node)

    def _of_two(self, node: fx.Node, name: str, one: Value, other: Value) -> Read:
        """Read an operation on the entries of two values."""
        sign = SUMS.get(name)
        factor = node.kwargs.get("alpha", 1)
        if one.shape != other.shape or set(node.kwargs) - {"alpha"} or not isinstance(factor, int | float):
            what = "a sum of values of different shapes" if sign else f"{name} of values of different shapes"
            return self._unknown(node, what, one)
        if same(one.shape, one.roles, other.roles) and len(one.parts) == len(other.parts):
            pairs = list(zip(one.parts, other.parts, strict=True))
            if all(a.is_same(b) for a, b in pairs):
                return self._on_same(node, name, one, pairs, factor)
            if sign and all(a.channels == b.channels for a, b in pairs):
                other = other.then(_times(sign * factor)) if sign * factor != 1 else other
                sums = [self._sum(node, one, a, other, b) for a, b in zip(one.parts, other.parts, strict=True)]
                return replace(one, parts=tuple(sums))
        if not sign:
            return self._unknown(node, f"{name} of two values that depend on the input", one)
        place = self._builder.read_as(other.then(_times(sign * factor)) if sign * factor != 1 else other, one.roles)
        if place is None:
            return self._unknown(node, "a sum of channels and positions", one)
        whole = self._checked_sum(node, self._builder.place(one), place)
        return self._builder.value(whole, channels(one.shape, one.roles), one.shape, one.roles)

    def _on_same(self, node: fx.Node, name: str, x: Value, pairs: list[tuple[Part, Part]], factor: float) -> Read:
        """Both are functions of the same entries."""

        def operation(a: Tensor, b: Tensor) -> Tensor:
            b = b * factor if name in SUMS else b
            return getattr(a, str(node.target))(b) if node.op == "call_method" else node.target(a, b)  # type: ignore

        found = replace(x, parts=tuple(a.with_other(b, operation) for a, b in pairs))
        if not all(part.function.is_finite() for part in found.parts):
            return self._unknown(node, f"{name}, which is not finite everywhere", x)
        return found

    def _sum(self, node: fx.Node, one: Value, a: Part, other: Value, b: Part) -> Part:
        places = self._builder.part(one, a), self._builder.part(other, b)
        apart = a.root == b.root and (a.start + a.channels <= b.start or b.start + b.channels <= a.start)
        total = self._builder.add(*places) if apart else self._checked_sum(node, *places)
        return Part(total, 0, a.channels)

    def _checked_sum(self, node: fx.Node, one: int, other: int) -> int:
        if not self._builder.are_independent(one, other):
            self._builder.note_of(
                self._name(node),
                " adds two values that no weights of their own keep independent; they are taken for it.",
                " add two values each that no weights of their own keep independent; they are taken for it.",
            )
        return self._builder.add(one, other)


def _times(factor: float) -> Elementwise:
    return Elementwise(lambda x: factor * x, (factor, 0.0))
