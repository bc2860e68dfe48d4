"""One observed layer: what is seen of its input, its running averages, and what its next step is about."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trimtab import _torch
from trimtab.bnp.algorithm.averages import RunningAverage
from trimtab.bnp.algorithm.moments import Rows
from trimtab.bnp.algorithm.step import LayerStep
from trimtab.bnp.backends import BufferMoments, InputLayout
from trimtab.bnp.layer_shapes import default_columns, is_sharded, wrong_columns
from trimtab.bnp.layers import InputColumns, LayerType, output_first
from trimtab.bnp.row_sums import RowSums
from trimtab.bnp.rows.books import Books
from trimtab.bnp.rows.compiled import CompiledRows
from trimtab.bnp.rows.known_layer import KnownLayer, KnownShape
from trimtab.bnp.rows.last_call import LastCall
from trimtab.bnp.rows.layer_hooks import CallHooks, observable
from trimtab.bnp.rows.observation import Observation


class ObservedLayer(KnownLayer):
    """Watches one layer and keeps its statistics.

    Attributes:
        running: The running averages, from the first step on.
        books: Which of the rows that were seen count.
        warned_unseen: Whether it has been said that the layer had a gradient but no input.
        warned_unsupported: Whether it has been said that the layer cannot be preconditioned.
    """

    def __init__(self, name: str, module: nn.Module, kind: LayerType, observation: Observation) -> None:
        """Know the layer; `start` puts the hooks on."""
        super().__init__(name, module, kind)
        self.running: RunningAverage | None = None
        self.warned_unseen = False
        self.warned_unsupported = False
        self._observation = observation
        self._forget()

    def _forget(self) -> None:
        """Have no hooks, no rows, and nothing that is for this machine."""
        self._compiled = CompiledRows()
        self.books = Books(self._observation.open_calls, self._compiled)
        self._memo: dict[str, Any] = {}  # for the backends
        self._last_call: LastCall | None = None
        # A layout of moments, a shape of the weight and a running mean that fit each other, and the last step of these
        self._last_step: tuple[InputLayout, KnownShape, Tensor, LayerStep] | None = None
        common = self._observation
        self.hooks = CallHooks(
            self.module, self._called, self._seen, self.kind, common.options, self._compiled, common.pause
        )

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which have statistics and nothing else."""
        names = ("name", "module", "kind", "warned_unseen", "warned_unsupported", "_observation")
        # Not the averages themselves: torch.multiprocessing moves what it sends, and kernels know them by address.
        running = None if self.running is None else self.running.clone()
        return {**{name: self.__dict__[name] for name in names}, "running": running}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Be a copy."""
        self.__dict__.update(state)
        self._look_again()
        self._forget()

    def rename(self, name: str) -> None:
        """It has this name in the model now."""
        if name != self.name:
            self.name, self._last_step = name, None

    # ---- What is seen of it ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Put the hooks on the layer, if they are not."""
        if not self.hooks.on:
            self.hooks.put_on()
            self._follow(self.weight)

    def stop(self) -> None:
        """Take the hooks off and forget the pending rows."""
        self.books.discard()
        self.books.follow(None)
        self._compiled.clear()
        self._memo, self._last_step = {}, None
        self.hooks.take_off()

    def _follow(self, weight: nn.Parameter | None) -> None:
        """See what becomes of this weight's gradients. Those of a shard do not come from autograd."""
        if weight is not None and not isinstance(weight, nn.UninitializedParameter):
            follows = weight.requires_grad and not is_sharded(weight)
            held = _torch.held_gradient(self._observation.model, weight) if follows else None
            self.books.follow(weight if follows else None, held)
            self._prepare_for_compiled_code(weight)

    def _prepare_for_compiled_code(self, weight: nn.Parameter) -> None:
        """Make what it needs, which it cannot make itself."""
        self._last_step = None
        if weight.numel() and (shape := self.shape(weight)) is not None:
            self._compiled.fit(weight, shape, self._observation.options, self._token_reached)

    def _called(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """Forward hook, in eager code. A call like the last one is the common case and has a short way."""
        if "forward" in module.__dict__:  # replaced since the hooks were put on: this call was not followed
            self.hooks.refresh()
            return
        last, weight = self._last_call, self.books.weight
        if (
            last is not None
            and module is self.module  # and not a replica that DataParallel has made of it
            and weight is not None
            and weight is self.parameters.get("weight")
            and weight.requires_grad
            and type(output) is Tensor
            and output.requires_grad
            and args
            and self._problem is None
        ):
            rows = last.rows(args[0], output)
            if rows is not None:
                self.books.called(rows, (output,))
                return
        observed = observable(module, args, kwargs, output)
        if observed is not None:
            self._seen(module, *observed)

    def _seen(self, layer: Any, x: Tensor, outputs: Sequence[Tensor], weight: nn.Parameter) -> None:
        """Enter the rows of a call in the books."""
        if (self._problem is not None or self.hooks.own_forward is not None) and self.problem is not None:
            return
        if is_sharded(weight):
            self._has("its weight stays sharded while it computes, as under tensor parallelism")
            return
        last = self._last_call
        rows = last.rows(x, outputs[0]) if last is not None else None
        if rows is None:
            rows = self._rows(layer, x, outputs[0], weight)
            if rows is None:
                return
        if weight is not self.books.weight:
            self._follow(weight)
        self.books.called(rows, outputs)

    def _rows(self, layer: Any, x: Tensor, y: Tensor, weight: nn.Parameter) -> Rows | None:
        """The rows of any call; None if there are none, or if they cannot be the layer's."""
        if _torch.is_exporting():
            return None
        backends = self._observation.backends
        rows = self.kind.observe(layer, x, y, self._observation.options)
        if not isinstance(rows, InputColumns):
            return rows if self._fits(rows, weight) and rows.moments.count != 0 else None
        if not rows.x.numel():
            return None
        layout = backends.layout(rows.x, rows.dim) if rows.x is x else None
        if layout is not None:
            self._last_call = LastCall(layer, layout, y.shape, rows)
            return self._last_call.rows(x, y) or rows.rows()
        self._last_call = None
        return rows.rows(backends.moments(rows.x, rows.dim))

    def _token_reached(self, sums: Tensor) -> None:
        """Tensor hook: a backward through compiled code has come to this layer.

        The same backward has the weight's gradient; which of the two comes first is not known.
        """
        weight = self.weight
        if weight is not self.books.weight:
            self._follow(weight)
        self.books.before_gradient()
        self._compiled.arrived = True
        if self.running is None and weight is not None:  # before a compiled step, which would be compiled twice
            self.running = self.new_averages(self._compiled.columns)

    # ---- The step ----------------------------------------------------------------------------------------------------

    def pending(self) -> Rows | RowSums | None:
        """All rows whose gradient is in weight.grad, pooled.

        If no backward has added to it, whoever took the gradients by hand is expected to have put them there.
        """
        rows = self.books.accumulated()
        if self._compiled.arrived and (weight := self.weight) is not None:
            compiled = self._compiled.rows(weight)
            return compiled if compiled is None or rows is None else compiled.rows().merge(rows)
        return self.books.returned() if rows is None else rows

    def returned(self) -> Rows | None:
        """The rows whose gradient torch.autograd.grad has returned to its caller."""
        return self.books.returned()

    @property
    def columns(self) -> torch.Size:
        """The shape of the layer's statistics; (0,) as long as it cannot be known."""
        if self.running is not None:
            return self.running.mean.shape
        if (rows := self.pending()) is not None:
            return rows.shape if isinstance(rows, RowSums) else rows.moments.shape
        weight = self.weight
        shape = None if weight is None or isinstance(weight, nn.UninitializedParameter) else self.shape(weight)
        if weight is None or shape is None:
            return torch.Size((0,))
        return torch.Size(default_columns(weight, shape, self._observation.options))

    def new_averages(self, columns: Sequence[int] | None = None) -> RunningAverage:
        """Running averages as they are before the first step, for columns of this shape (None: of the layer's)."""
        like = torch.empty(self.columns if columns is None else columns, dtype=self.dtype, device=self.device)
        return RunningAverage(like, debias=self._observation.options.debias)

    def restore(self, running: RunningAverage | None, accumulated: Rows | None, returned: Rows | None) -> None:
        """Take up a saved state. Accumulated rows stay if weight.grad is restored before the next backward."""
        self.running = running
        self.books.restore(accumulated, returned)

    def step(
        self, weight: nn.Parameter, grad: Tensor, rows: Rows | RowSums | None, parameters: set[int] | None
    ) -> LayerStep | None:
        """What the step of this layer is about; None if there are no rows, or if there is a `problem`.

        Args:
            weight: The weight.
            grad: Its gradient.
            rows: The rows that the gradient is of, mostly `pending`.
            parameters: The identities of the parameters to take a step with; None: of all.

        Raises:
            ValueError: If its running averages are for other inputs.
        """
        if rows is None:
            return None
        if (self._problem is not None or self.hooks.own_forward is not None) and self.problem is not None:
            return None
        weight_shape = weight.shape
        if grad.shape != weight_shape:
            self._has(f"its gradient has shape {tuple(grad.shape)}, its weight {tuple(weight_shape)}")
            return None
        known = self._shape
        if known is None or known[0] != weight_shape or known[1] != self.module.__dict__.get("groups"):
            if self.shape(weight) is None:
                return None
            known = self._shape
            assert known is not None
        bias = self.trained_bias(parameters)
        bias_grad = None if bias is None else bias.grad
        layout = rows.moments.layout if type(rows) is Rows and type(rows.moments) is BufferMoments else None
        if layout is not None and self._last_step is not None:
            its_layout, its_shape, its_mean, step = self._last_step
            if (
                its_layout is layout
                and its_shape is known
                and self.running is step.running
                and step.running.mean is its_mean
                and weight.device == layout.device
            ):
                step.weight, step.bias, step.rows = grad, bias_grad, rows
                return step
        fitted = self._fitted(weight, rows, known)
        if fitted is None:
            return None
        running, by_output = self.running, self.kind.view is output_first
        assert running is not None
        step = LayerStep(self.name, grad, bias_grad, fitted, running, self.view, known[2], by_output, self._memo)
        if layout is not None and fitted is rows:
            self._last_step = layout, known, running.mean, step
        return step

    def _fitted(self, weight: nn.Parameter, rows: Rows | RowSums, known: KnownShape) -> Rows | RowSums | None:
        """The rows on the weight's device, with running averages; None if they do not fit or have no numbers."""
        like = rows if isinstance(rows, RowSums) else rows.moments
        if like.shape not in known[3]:
            self._has(wrong_columns(like.shape, known[2]))
            return None
        if like.device != weight.device:  # the model was moved
            if like.device.type == "meta":
                return None
            rows = rows.to(weight.device)
            like = rows if isinstance(rows, RowSums) else rows.moments
        if (token := self._compiled.token) is not None and token.device != weight.device:
            self._prepare_for_compiled_code(weight)
        if self.running is None or (self.running.mean.is_meta and like.device.type != "meta"):  # without numbers
            self.running = self.new_averages(like.shape)
        average = self.running.mean
        if average.shape != like.shape:
            raise ValueError(
                f"Layer {self.name!r} has statistics of shape {tuple(average.shape)}, but its input has "
                f"{tuple(like.shape)}; make a new BNP for the changed layer."
            )
        if average.dtype is not like.dtype or average.device != like.device:
            self.running.to(like.device, like.dtype)
        return rows
