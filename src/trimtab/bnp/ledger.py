"""Which rows of a layer count: those whose gradient the next step will use, each once.

The rows of a forward wait on its output. They count when a backward both reaches that output and adds the gradient
of the layer's weight to weight.grad; or when torch.autograd.grad hands it out, to somebody who may put it there.
"""

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from trimtab.bnp.kernels import Kernels
from trimtab.bnp.neglect import Neglect
from trimtab.bnp.statistics import Rows
from trimtab.bnp.traced import Tally

# The number of the backward that is running in this thread, −1 outside one; and whether it comes to a place in the
# graph. torch's own register_multi_grad_hook tells backwards apart by these.
_current_backward: Callable[[], int] = torch._C._current_graph_task_id
_comes_to: Callable[[Any], bool] = torch._C._will_engine_execute_node

_number = itertools.count()  # tells the forwards apart, since several backwards can go through one

# By the identity of a weight, the ledgers that follow it: several, if the model has several BNPs.
_FOLLOWERS: "dict[int, list[Ledger]]" = {}


class _Known:
    """The last backward that is known to add to gradients; the others hand them out, or are for something else.

    A backward does one or the other for all it comes to, so what the first layer finds out is true for the others.
    """

    adds = -1


class _Pool:
    """The rows of several forwards, pooled, each forward once."""

    __slots__ = ("forwards", "rows")

    def __init__(self) -> None:
        self.rows: Rows | None = None
        self.forwards: set[int] = set()

    def hold(self, rows: Rows | None) -> None:
        """Have these and no others; their forwards are past."""
        self.rows = rows
        self.forwards.clear()

    def add(self, forwards: dict[int, Rows]) -> None:
        for number, rows in forwards.items():
            if number not in self.forwards:
                self.forwards.add(number)
                self.rows = self.rows.merge(rows) if self.rows else rows


class Ledger:
    """Keeps the books for one layer.

    Attributes:
        weight: The parameter whose gradients are followed.
        followers: All ledgers that follow it, this one included.
        neglect: Is told of gradients that were dropped without a step.
    """

    def __init__(self, tally: Tally) -> None:
        """Nothing is written in it yet.

        Args:
            tally: What compiled code has seen of the layer.
        """
        self.weight: nn.Parameter | None = None
        self.followers: list[Ledger] = []
        self.neglect: Neglect | None = None
        self._tally = tally
        self._looks_before = False  # each time that there is a gradient; see `_look_before`
        self._handles: list[RemovableHandle] = []
        # The rows of a forward pass through these, in this order.
        self._reached: dict[int, dict[int, Rows]] = {}  # a backward, by its number, has come to the layer's output,
        self._computed: dict[int, Rows] = {}  # and has the weight's gradient, if somebody looks before,
        self._accumulated = _Pool()  # which was added to weight.grad,
        self._handed_out = _Pool()  # or is for who asked for it by torch.autograd.grad.
        self._backward = -1  # the backward that has last come here,
        self._hands_out = False  # and whether it is known to be torch.autograd.grad's
        self._compared = -1  # the backward before whose gradient weight.grad was looked at
        self._gradient_held: tuple[weakref.ref[Tensor], int] | None = None  # weight.grad then, and its version
        self._spent: weakref.ref[Tensor] | None = None  # weight.grad, if another BNP has preconditioned it

    def entry(self, rows: Rows, kernels: Kernels) -> Callable[[Tensor], None]:
        """The hook for the outputs of a forward that has shown these rows."""
        if self._reached and _current_backward() == -1:  # no backward is under way: what it reached came to nothing
            self._reached.clear()
        number = next(_number)

        def reached(grad: Tensor) -> None:
            if kernels.waiting:
                kernels.compute()
            backward = _current_backward()
            if backward != self._backward:
                self._begin(backward)
            if self._hands_out:
                self._spent = None
                self._handed_out.add({number: rows})
            elif (others := self._reached.get(backward)) is None:
                self._reached[backward] = {number: rows}
            else:
                others[number] = rows

        return reached

    @property
    def accumulated(self) -> Rows | None:
        """The rows whose gradient a backward has added to weight.grad, without those of compiled code."""
        if self._accumulated.rows is None and (self._reached or self._computed) and _current_backward() != -1:
            self._accumulated.add(self._taken(_current_backward()))  # a step within a backward, before our hook
        return self._accumulated.rows

    @property
    def handed_out(self) -> Rows | None:
        """The rows whose gradient torch.autograd.grad has returned to its caller."""
        self._settle()
        return self._handed_out.rows

    def discard(self) -> None:
        """Forget the rows that count, and those that could come to."""
        if self._reached:
            self._reached.clear()
        if self._computed:
            self._computed = {}
        if self._accumulated.rows is not None:
            self._accumulated.hold(None)
        if self._handed_out.rows is not None:
            self._handed_out.hold(None)
        self._gradient_held = None
        self._tally.forget()

    def restore(self, accumulated: Rows | None, handed_out: Rows | None) -> None:
        """Take up what was saved. Accumulated rows stay if weight.grad is restored before the next backward."""
        self.discard()
        self._spent = None
        self._accumulated.hold(accumulated)
        self._handed_out.hold(handed_out)

    def follow(self, weight: nn.Parameter | None) -> None:
        """Put the hooks on this weight, and on no other."""
        for handle in self._handles:
            handle.remove()
        self._join(weight)
        self._handles = []
        if weight is not None:
            self._handles.append(weight.register_post_accumulate_grad_hook(self._accumulate))
            if self._looks_before:
                self._handles.append(weight.register_hook(self._gradient))

    def _join(self, weight: nn.Parameter | None) -> None:
        """Be among those who follow this weight, and no other."""
        if self.weight is not None:
            self.followers.remove(self)
            if not self.followers:
                del _FOLLOWERS[id(self.weight)]
        self.weight, self._spent = weight, None
        self.followers = [] if weight is None else _FOLLOWERS.setdefault(id(weight), [])
        if weight is not None:
            self.followers.append(self)

    def spend(self, grad: Tensor) -> None:
        """The weight's gradient is preconditioned now, and not to be by other BNPs until a new one arrives."""
        for other in self.followers:
            if other is not self:
                other._spent = weakref.ref(grad)

    def is_spent(self, grad: Tensor) -> bool:
        """Whether another BNP has preconditioned this gradient since it arrived."""
        return self._spent is not None and self._spent() is grad and bool(grad.any())

    def reached_by_compiled_code(self) -> None:
        """A backward through compiled code has come to the layer.

        The same backward has the weight's gradient; which of the two comes first is not known.
        """
        self._look_before()
        self._compare()

    def _look_before(self) -> None:
        """From now on see each gradient before it is added.

        Most layers need no hook for that: another one is reached before, and its gradient was added. It is for those
        that come first, whose weights are used without them, or that are compiled.
        """
        weight = self.weight
        if not self._looks_before and weight is not None and weight.requires_grad:  # it may be frozen by now
            self._looks_before = True
            self._handles.append(weight.register_hook(self._gradient))

    def _begin(self, backward: int) -> None:
        """A backward has come to the layer's output."""
        self._backward, self._hands_out = backward, False
        if self._looks_before or self.weight is None:
            return
        if backward != _Known.adds:
            self._look_before()  # the next time; for now it is asked, which takes longer
        elif self._accumulated.rows is None and self._tally.empty:
            return
        try:
            # Not kept: while somebody holds this place of the graph, the weight cannot get another shape.
            if not _comes_to(torch.autograd.graph.get_gradient_edge(self.weight).node):
                return  # the gradient of something else is wanted
        except RuntimeError:  # torch.autograd.grad has been asked for the weight's: this is how torch says so
            self._hands_out = True
        self._compare()

    def _gradient(self, grad: Tensor) -> None:
        """Tensor hook: a backward has the weight's gradient."""
        backward = _current_backward()
        if backward != self._backward:
            self._backward, self._hands_out = backward, False
        self._compare()
        self._settle()
        self._computed = self._reached.pop(backward, {})
        self._spent = None

    def _compare(self) -> None:
        """Before a backward adds its gradient: rows whose gradient is gone do not count."""
        if self._compared != (backward := _current_backward()):
            self._compared = backward
            if self._was_dropped():
                self._accumulated.hold(None)
                self._tally.forget()
                if self.neglect is not None and self.weight is not None and self._spent is None:
                    self.neglect.dropped(self.weight)

    def _settle(self) -> None:
        """What a backward computed and did not add to weight.grad, it has handed out."""
        if self._computed:
            self._handed_out.add(self._computed)
            self._computed = {}

    def _taken(self, backward: int) -> dict[int, Rows]:
        """The rows whose gradient a backward has added, which are not to be added again."""
        rows, self._computed = self._computed or self._reached.pop(backward, {}), {}
        return rows

    def _accumulate(self, weight: Tensor) -> None:
        """Post-accumulate hook: this backward's gradient has been added to weight.grad.

        So the loop does not work by hand, and what was handed out before was for another purpose.
        """
        backward, grad = _current_backward(), weight.grad
        if backward != self._backward:  # it did not come through a call of the layer, and nobody has looked before
            self._look_before()
            if grad is not None and self._is_new(grad):
                self._accumulated.hold(None)
        if self._computed or self._reached:
            self._accumulated.add(self._taken(backward))
        _Known.adds = backward
        if self._handed_out.rows is not None:
            self._handed_out.hold(None)
        if self._spent is not None:
            self._spent = None
        if grad is not None:
            self._gradient_held = weakref.ref(grad), grad._version

    def _is_new(self, grad: Tensor) -> bool:
        """Whether there was no gradient before this one, as far as can be told when it is there."""
        held = None if self._gradient_held is None else self._gradient_held[0]()
        return grad is not held and grad._version == 0 and not grad.requires_grad

    def _was_dropped(self) -> bool:
        """Whether the gradient of the accumulated rows has since been set to None or to zero.

        Its values are looked at only if something other than a backward has changed it.
        """
        if self.weight is None or (self._accumulated.rows is None and self._tally.empty):
            return False
        grad = self.weight.grad
        if grad is None or self._gradient_held is None:
            return grad is None
        held, version = self._gradient_held
        return (grad is not held() or grad._version != version) and not bool(grad.any())
