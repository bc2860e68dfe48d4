"""The calls of layers, each known by its node in autograd's graph until a backward has come to it.

In a backward, autograd can be asked whether it executes a node (`comes_to`). That costs little, but it answers no for a
node at which the backward has begun, and a node that is kept keeps what autograd has saved for it. So a call is known
by its node only up to the next backward; else a hook on the node waits for a backward to come by:

    - if the layer was called outside a call of the model, or within a backward (checkpointing);
    - if the node is that of one of the model's own outputs, unless it has one below that leads to the weight alone;
    - from the next call of the model or the next step on, or once a backward has kept its graph.
"""

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from threading import get_ident
from typing import Any

from torch import Tensor

from trimtab import _torch
from trimtab.bnp.algorithm.moments import Rows
from trimtab.bnp.backends import Backends

new_number = partial(next, itertools.count())
"""A number that no call has had yet."""


class Call:
    """One output of a call of a layer.

    Attributes:
        rows: What was seen.
        node: Its node in the graph, while the call is known by that.
        number: That of the call: several backwards can go through it, and it can have several outputs.
        weight: The layer's weight.
    """

    __slots__ = ("_reached", "node", "number", "rows", "weight")

    def __init__(
        self, number: int, rows: Rows, node: Any, weight: Tensor | None, reached: "Callable[[Call], None]"
    ) -> None:
        """`reached` is called if a backward comes to the node while the call waits for that."""
        self.number, self.rows, self.node, self.weight, self._reached = number, rows, node, weight, reached

    def expect_to_be_first(self) -> None:
        """A backward may begin at the node: be known by the one below it, or wait for a backward."""
        if (below := self._transposition()) is not None:
            self.node = below
        else:
            self.wait_for_backward()

    def is_first(self) -> bool:
        """Whether the running backward has begun at the node, as far as that can be told.

        That is so for a Linear layer: the backward executes the transposition of its weight, but not the node.
        """
        below = self._transposition()
        return below is not None and _torch.comes_to(below)

    def _transposition(self) -> Any:
        """The node of the transposition of the weight, of which Linear makes one in each call; None without one."""
        for node, _ in reversed(self.node.next_functions):  # the weight is the last operand
            if node is not None and node.name() == "TBackward0":
                leaf = node.next_functions[0][0]
                if leaf is not None and getattr(leaf, "variable", None) is self.weight:
                    return node
        return None

    def wait_for_backward(self) -> None:
        """Be known by a hook on the node from now on, and let the node go."""
        node, self.node = self.node, None
        node.register_prehook(self.on_node)

    def on_node(self, *_: Any) -> None:
        """Hook: a backward has come to the node."""
        self._reached(self)


class OpenCalls:
    """The calls of all layers of a model that are known by their nodes.

    Attributes:
        backends: Have to compute what waits when a backward has come to a layer.
        adding_backward: The last backward that has added to a gradient.
    """

    def __init__(self, backends: Backends) -> None:
        """None yet."""
        self.backends = backends
        self.adding_backward = -1
        self._calls: list[Call] = []
        self._thread = 0  # in which the model is being called, if calls may be known by their nodes

    def begin(self) -> None:
        """The model is called.

        Within a backward (checkpointing) nothing changes: a hook on a node that it has executed would be too late.
        """
        if _torch.current_backward() != -1:
            return
        if self._calls:
            self.release()
        self._thread = get_ident() if _torch.ASKS_FOR_NODES else 0

    def end(self, outputs: Iterable[Tensor]) -> None:
        """The call of the model is over, with these outputs."""
        self._thread = 0
        for y in outputs:
            if (node := y.grad_fn) is not None:
                for call in self._calls:
                    if call.node is node:
                        call.expect_to_be_first()

    def keep(self, call: Call) -> bool:
        """Whether a call outside a backward may be known by its node: within a call of the model."""
        if self._thread != get_ident():
            return False
        self._calls.append(call)
        return True

    def release(self) -> None:
        """Keep no node any longer."""
        self._thread = 0  # also after a call that Ctrl-C has ended, for which PyTorch calls no hook
        for call in self._calls:
            if call.node is not None:
                call.wait_for_backward()
        self._calls.clear()
