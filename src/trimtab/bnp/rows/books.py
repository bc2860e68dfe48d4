"""Which rows of a layer count, in eager code: those whose gradient the next step will use, each once.

A call of a layer shows some rows. They pass through these states:

    seen         the layer was called; the call is known by its node in autograd's graph
    computed     a backward that executes this node has the gradient of the layer's weight
    accumulated  it was added to weight.grad: the rows count at the next step
    returned     it was not, so torch.autograd.grad has returned it to its caller: the rows count at the next step if no
                 backward adds to weight.grad before, for then the caller is expected to have put it there

A step, or a gradient that was set to None or to zero in the meantime, ends all of it. Two hooks on the weight move the
rows on: a tensor hook, which runs when a backward has the weight's gradient, and a post-accumulate hook, which runs if
it was added. Whether the backward executes the node of a call is a question that autograd answers, or a hook on the
node does: see `calls`.
"""

import weakref
from collections.abc import Callable, Iterable

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle, unserializable_hook

from trimtab import _torch
from trimtab.bnp.algorithm.moments import Rows
from trimtab.bnp.layer_shapes import is_sharded
from trimtab.bnp.rows.calls import Call, OpenCalls, new_number
from trimtab.bnp.rows.compiled import CompiledRows
from trimtab.bnp.rows.unused_steps import UnusedSteps

# By the identity of a weight, the books that follow it: several, if the model has several BNPs.
_FOLLOWERS: "dict[int, list[Books]]" = {}


class _Pool:
    """The rows of several calls, pooled, each call once.

    Attributes:
        rows: Of all of them. Whoever sets this to None begins anew.
    """

    __slots__ = ("_calls", "rows")

    def __init__(self, rows: Rows | None = None) -> None:
        """Begin with these, whose calls are past."""
        self.rows = rows
        self._calls: set[int] = set()

    def add(self, calls: Iterable[Call]) -> None:
        if self.rows is None:
            self._calls.clear()
        for call in calls:
            if call.number not in self._calls:
                self._calls.add(call.number)
                self.rows = call.rows if self.rows is None else self.rows.merge(call.rows)


class Books:
    """Keeps the books for one layer.

    Attributes:
        weight: The parameter whose gradients are followed.
        is_gathered: Whether it is one that FSDP makes for forward and backward, and not the one that is trained.
        followers: All books that follow it, these included.
        unused_steps: Is told of gradients that were dropped without a step.
    """

    def __init__(self, open_calls: OpenCalls, compiled: CompiledRows) -> None:
        """Nothing is written in them yet.

        Args:
            open_calls: Of all layers of the model.
            compiled: What compiled code has seen of the layer.
        """
        self.weight: nn.Parameter | None = None
        self.is_gathered = False
        self.followers: list[Books] = []
        self.unused_steps: UnusedSteps | None = None
        self._open_calls = open_calls
        self._compiled = compiled
        self._handles: list[RemovableHandle] = []
        self._seen: list[Call] = []  # known by their nodes,
        self._reached: dict[int, list[Call]] = {}  # or reached, by the number of the backward
        self._computed: list[Call] = []
        self._computed_by = -1  # the number of the backward
        self._accumulated = _Pool()
        self._returned = _Pool()
        self._compared = -1  # the backward before which weight.grad was looked at
        self._gradient: tuple[weakref.ref[Tensor], int | None] | None = None  # weight.grad as it was left, its version
        self._spent: weakref.ref[Tensor] | None = None  # weight.grad, if another BNP has preconditioned it
        self._held: Callable[[], bool] | None = None  # of a weight whose gradient is moved on to a sharded one

    def called(self, rows: Rows, outputs: Iterable[Tensor]) -> None:
        """The layer was called and has shown these rows; its outputs need a gradient."""
        within_backward = _torch.current_backward() != -1
        if self._reached and not within_backward:  # what earlier backwards came to has come to nothing
            self._reached.clear()
        if self._seen and self._seen[0].node is None:  # the model was called again since
            self._seen = [call for call in self._seen if call.node is not None]
        number = new_number()
        for y in outputs:
            node = y.grad_fn if _torch.base_of(y) is None else _torch.node_of_view(y)
            if node is None:  # the output is a leaf
                y.register_hook(Call(number, rows, None, None, self.reached).on_node)
                continue
            call = Call(number, rows, node, self.weight, self.reached)
            if not within_backward and self._open_calls.keep(call):
                self._seen.append(call)
            else:
                call.wait_for_backward()

    def reached(self, call: Call) -> None:
        """A backward has come to the node of a call."""
        if self._open_calls.backends.waiting:
            self._open_calls.backends.flush()
        self._reached.setdefault(_torch.current_backward(), []).append(call)

    def accumulated(self) -> Rows | None:
        """The rows whose gradient a backward has added to weight.grad."""
        if self._accumulated.rows is None and self._computed and _torch.current_backward() != -1:
            self._accumulated.add(self._computed)  # a step within a backward, before our hook
            self._computed = []
        return self._accumulated.rows

    def returned(self) -> Rows | None:
        """The rows whose gradient torch.autograd.grad has returned to its caller."""
        if self._computed:
            self._return_computed()
        return self._returned.rows

    def discard(self) -> None:
        """Forget the rows that count, and those that could come to. Calls that are open have been released."""
        if self._seen:
            self._seen = []
        if self._computed:
            self._computed = []
        if self._reached:
            self._reached.clear()
        self._accumulated.rows = self._returned.rows = None
        if self._compiled.arrived:
            self._compiled.forget()
        self._gradient = None

    def restore(self, accumulated: Rows | None, returned: Rows | None) -> None:
        """Take up what was saved. Accumulated rows stay if weight.grad is restored before the next backward."""
        self.discard()
        self._spent = None
        self._accumulated, self._returned = _Pool(accumulated), _Pool(returned)

    def follow(self, weight: nn.Parameter | None, held: Callable[[], bool] | None = None) -> None:
        """Put the hooks on this weight, and on no other.

        Args:
            weight: The parameter that autograd accumulates into; None: no other one, either.
            held: If what is accumulated there is moved on after the backward (FSDP): whether it is still somewhere.
        """
        for handle in self._handles:
            handle.remove()
        if self.weight is not None:
            self.followers.remove(self)
            if not self.followers:
                del _FOLLOWERS[id(self.weight)]
        self.weight, self._spent, self._handles, self.followers = weight, None, [], []
        self._held, self.is_gathered = held, held is not None
        if weight is not None:
            self.followers = _FOLLOWERS.setdefault(id(weight), [])
            self.followers.append(self)
            self._handles = [
                weight.register_hook(self._on_gradient),
                weight.register_post_accumulate_grad_hook(self._on_accumulated),
            ]

    def spend(self, grad: Tensor) -> None:
        """The weight's gradient is preconditioned now, and not to be by other BNPs until a new one arrives."""
        for other in self.followers:
            if other is not self:
                other._spent = weakref.ref(grad)

    def is_spent(self, grad: Tensor) -> bool:
        """Whether another BNP has preconditioned this gradient since it arrived.

        One that is zero has not arrived yet; of a sharded one the processes would see different parts.
        """
        return self._spent is not None and self._spent() is grad and (is_sharded(grad) or bool(grad.any()))

    def before_gradient(self) -> None:
        """A backward is about to add to weight.grad: rows whose gradient is gone do not count."""
        backward = _torch.current_backward()
        # Once in a backward. If backwards cannot be told apart, not after compiled code has added its rows, either.
        if self._compared != backward or not (_torch.TELLS_BACKWARDS_APART or self._compiled.arrived):
            self._compared = backward
            if self._was_dropped():
                self._accumulated.rows = None
                self._compiled.forget()
                if self.unused_steps is not None and self.weight is not None and self._spent is None:
                    self.unused_steps.dropped(self.weight)

    @unserializable_hook  # type: ignore[untyped-decorator]
    def _on_gradient(self, grad: Tensor) -> None:
        """Tensor hook: a backward has the weight's gradient."""
        if self._open_calls.backends.waiting:
            self._open_calls.backends.flush()
        if self._accumulated.rows is not None or self._compiled.arrived:
            self.before_gradient()
        if self._computed:
            self._return_computed()
        self._spent = None
        self._computed_by = _torch.current_backward()
        self._computed = self._reached.pop(self._computed_by, []) if self._reached else []
        if self._seen:
            self._computed += self._executed()

    def _executed(self) -> list[Call]:
        """The calls among those known by their nodes that the running backward executes; the others stay."""
        executed, others, keeps_graph = [], [], _torch.keeps_graph()
        for call in self._seen:
            if call.node is None:  # it waits for a backward by now
                continue
            if not _torch.comes_to(call.node) and not call.is_first():
                others.append(call)
                continue
            executed.append(call)
            if keeps_graph:
                call.wait_for_backward()
            else:
                call.node = None
        self._seen = others
        return executed

    def _on_accumulated(self, weight: Tensor) -> None:
        """Post-accumulate hook: this backward's gradient has been added to weight.grad.

        So the loop does not work by hand, and what was returned before was for another purpose.
        """
        self._open_calls.adding_backward = _torch.current_backward()
        if self._computed:
            computed, self._computed = self._computed, []
            self._accumulated.add(computed)
        self._returned.rows = None
        if (grad := weight.grad) is not None:
            self._gradient = weakref.ref(grad), _torch.version_of(grad)

    def _return_computed(self) -> None:
        computed, self._computed = self._computed, []
        failed = self._computed_by == self._open_calls.adding_backward and _torch.TELLS_BACKWARDS_APART
        if not failed:  # in the middle of adding gradients
            self._returned.add(computed)

    def _was_dropped(self) -> bool:
        """Whether the gradient of the accumulated rows has since been set to None or to zero.

        Its values are looked at only if something other than a backward has changed it.
        """
        if self.weight is None or (self._accumulated.rows is None and not self._compiled.arrived):
            return False
        if self._held is not None:
            return not self._held()
        grad = self.weight.grad
        if grad is None or self._gradient is None:
            return grad is None
        held, version = self._gradient
        now = _torch.version_of(grad)
        return (grad is not held() or now is None or now != version) and not bool(grad.any())
