"""One step of BNP: the gradients of all layers of a model are replaced."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from trimtab import _torch
from trimtab.bnp.alarm import DeferredAlarm
from trimtab.bnp.algorithm.step import LayerStep
from trimtab.bnp.backends import Backends
from trimtab.bnp.layer_shapes import is_sharded
from trimtab.bnp.options import Options
from trimtab.bnp.rows.books import Books
from trimtab.bnp.rows.layer import ObservedLayer
from trimtab.bnp.rows.model import ObservedModel
from trimtab.bnp.sharding import ShardedStep
from trimtab.bnp.sync import Exchange
from trimtab.notice import warn_user


class ModelStep:
    """Steps of one BNP, with what a user is told of on the way.

    Attributes:
        alarm: Rings once something was not finite.
    """

    def __init__(
        self,
        observed: ObservedModel,
        backends: Backends,
        options: Options,
        exchange: Exchange | None = None,
        watch: Callable[[LayerStep], None] | None = None,
    ) -> None:
        """Of the layers of an observed model.

        Args:
            observed: The model.
            backends: What computes the step.
            options: BNP's.
            exchange: Gives the rows of all processes; None: those of this one are all.
            watch: Called with the step of each layer, before its gradients are replaced.
        """
        self.alarm = DeferredAlarm(_warn_not_finite)
        self._exchange = exchange
        self._observed, self._backends, self._options = observed, backends, options
        self._warned_single_row = options.statistics != "batch"
        self._watch = watch

    def __getstate__(self) -> dict[str, Any]:
        """For copies."""
        return {**self.__dict__, "alarm": DeferredAlarm(_warn_not_finite)}

    def mute(self) -> None:
        """Tell the user nothing."""
        self.alarm = DeferredAlarm(lambda: None)
        self._warned_single_row = True
        for layer in self._observed.layers.values():
            layer.warned_unseen = layer.warned_unsupported = True

    def __call__(self, parameters: set[int] | None, fold: bool) -> None:
        """One step over the layers whose weight is among the parameters (None: all).

        Args:
            parameters: The identities of the parameters.
            fold: Whether the running averages move: once in a step that runs its closure several times.
        """
        if self._exchange is not None and self._exchange.joined:
            return
        self._observed.update()
        eager = not _torch.is_compiling()
        if eager and self._observed.unused_steps.count:
            self._observed.unused_steps.stepped()
        steps: list[LayerStep] = []
        unseen: list[ObservedLayer] = []
        shared: list[tuple[Books, Tensor]] = []
        sharded = ShardedStep(self._observed.sharded, parameters) if self._observed.sharded else None
        everywhere = None if self._exchange is None else self._exchange(self._observed.layers, sharded)
        for layer in self._observed.supported:
            weight, books = layer.parameters["weight"], layer.books
            if books.is_gathered and weight is books.weight:
                raise RuntimeError(
                    f"The weight of layer {layer.name!r} is gathered from all processes at the step, as a forward "
                    "since the last backward leaves it: call reshard() of the sharded model before."
                )
            grad = None if weight is None else weight.grad
            if weight is None or grad is None or not weight.requires_grad:
                continue
            if parameters is not None and id(weight) not in parameters:
                continue
            rows = layer.pending() if everywhere is None else everywhere[layer]
            step = layer.step(weight, grad, rows, parameters)
            if step is None:
                unseen.append(layer)
                continue
            if sharded is not None and is_sharded(grad):
                step = sharded.localized(layer, step)
            steps.append(step)
            if len(books.followers) > 1 and eager:
                _refuse_spent(layer, grad)
                shared.append((books, grad))
            if not self._warned_single_row:
                self._warn_single_row(layer, step)
        if self._watch is not None:
            for step in steps:
                self._watch(step)
        try:
            flags = self._backends.step(steps, fold)
            if sharded is not None:
                sharded.finish()
        finally:
            for step in steps:  # layers keep them for the next step, but not what is in them
                del step.weight, step.bias, step.rows
        for books, grad in shared:
            books.spend(grad)
        self._observed.discard()
        if unseen and eager:
            self._observed.warn_problems(unseen)
            _warn_unseen([layer for layer in unseen if layer.problem is None])
        if fold:
            for flag in flags:
                self.alarm.watch(flag)
        self.alarm.check()

    def _warn_single_row(self, layer: ObservedLayer, step: LayerStep) -> None:
        count = step.rows.rows().columns().count
        if not isinstance(count, Tensor) and count == 1:
            self._warned_single_row = True
            warn_user(
                f"Layer {layer.name!r} saw a single row in a step, which has no variance of its own: with "
                "statistics='batch' the running statistics are used in such a step."
            )


def _refuse_spent(layer: ObservedLayer, grad: Tensor) -> None:
    if layer.books.is_spent(grad):
        raise RuntimeError(
            f"The gradient of layer {layer.name!r} was preconditioned by another BNP since it arrived and would be "
            "a second time; detach() one of the two, or give each its own layers (skip)."
        )


def _warn_unseen(layers: list[ObservedLayer]) -> None:
    names = [layer.name for layer in layers if not layer.warned_unseen]
    for layer in layers:
        layer.warned_unseen = True
    if names:
        warn_user(
            f"No input was seen for {', '.join(map(repr, names))} since the last step, so their gradients are left "
            "as they are. (A layer is seen when it is called as a module, with an input that is not empty; "
            "nn.MultiheadAttention does not call its out_proj. One with a forward of its own is seen when that calls "
            "torch.nn.functional with its weight while gradients are enabled. Nothing is seen of code that was compiled"
            " without BNP: torch.compiler.reset() drops that.)"
        )


def _warn_not_finite() -> None:
    warn_user(
        "A step had inputs or gradients that are not finite; the running averages of these layers were left as they "
        "were. BNP.report() counts such steps for each layer."
    )
