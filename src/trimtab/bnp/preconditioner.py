"""`BNP`: what a user holds. It observes a model's layers and changes their gradients at each step."""

import copy
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab.bnp import state
from trimtab.bnp.attachment import Attachment, attached_to, check_optimizer, parameter_ids
from trimtab.bnp.deferred import DeferredAlarm
from trimtab.bnp.kernels import Kernels
from trimtab.bnp.ledger import Ledger
from trimtab.bnp.observer import Observer
from trimtab.bnp.options import NoBias, Options, Spatial, Statistics, Tokens
from trimtab.bnp.report import Report, describe
from trimtab.bnp.update import Update
from trimtab.bnp.watch import Watch
from trimtab.notice import say


class BNP:
    """Batch normalization preconditioning of a model's gradients.

    Observes the inputs of every Linear, Conv and ConvTranspose layer. At each step it folds their mean
    and variance into running averages and multiplies each layer's gradient by PPᵀ/q² (bnp paper,
    Algorithms 2 and 3). The model itself is not changed.

    Example:
        >>> import torch, trimtab
        >>> model = torch.nn.Linear(3, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> bnp = trimtab.BNP(model).attach(optimizer)
        >>> model(torch.randn(8, 3)).square().mean().backward()
        >>> optimizer.step()

    Args:
        model: Any module.
        rho: The share of the running averages that a step keeps.
        eps1: Added to each variance as a multiple of the largest one.
        eps2: Added to each variance.
        statistics: `"running"`: the averages are used; `"batch"`: the statistics of the step itself.
        debias: Start the averages at zero and divide them by 1 − ρᵗ. The paper does not; without it the
            first 1/(1 − rho) steps or so still see the initial mean 0 and variance 1.
        spatial: Statistics of a convolution per input `"channel"` (the paper's approximation) or exactly,
            per kernel `"site"`.
        tokens: Whether a Linear layer's extra dimensions are `"positions"`, as in a convolution, or further
            `"samples"`, as they are when the loss is a mean over them.
        no_bias: What scales a weight without bias: the `"second_moment"` or the `"variance"` of its input.
        skip: Names of layers, or of modules that contain them, to leave alone; `*` and `?` match as in
            file names.
        fast: Use compiled kernels where there are some; the results are the same up to rounding.

    Raises:
        TypeError: If `model` is not a module, or `skip` is not made of names.
        ValueError: If an option has no meaning, if `skip` names nothing or if no layer is left.
        RuntimeError: If the model was compiled and has run already.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        rho: float = 0.99,
        eps1: float = 1e-2,
        eps2: float = 1e-4,
        statistics: Statistics = "running",
        debias: bool = False,
        spatial: Spatial = "channel",
        tokens: Tokens = "positions",
        no_bias: NoBias = "second_moment",
        skip: str | Iterable[str] = (),
        fast: bool = True,
    ) -> None:
        """Observe the model's layers from now on."""
        if not isinstance(model, nn.Module):
            raise TypeError(f"BNP takes a torch.nn.Module, not {type(model).__name__}.")
        self.model = model
        self.options = Options(
            rho=rho,
            eps1=eps1,
            eps2=eps2,
            statistics=statistics,
            debias=debias,
            spatial=spatial,
            tokens=tokens,
            no_bias=no_bias,
            fast=fast,
        )
        self._kernels = Kernels(self.options)
        self._watch = Watch(model, self.options, _names(skip), self._kernels)
        self._attachment: Attachment | None = None
        self._alarm = DeferredAlarm(_say_not_finite)
        self._said_single_row = False
        self._watch.start()
        self._stop_when_dropped()
        _say_if_distributed()

    def _stop_when_dropped(self) -> None:
        """A BNP that nobody holds any longer takes its hooks with it."""
        weakref.finalize(self, self._watch.stop).atexit = False

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which are detached: all but the bond to the optimizer. `Watch` leaves its hooks out."""
        return {**self.__dict__, "_attachment": None, "_alarm": DeferredAlarm(_say_not_finite)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Be a copy."""
        self.__dict__.update(state)
        self._stop_when_dropped()

    def __copy__(self) -> "BNP":
        """A detached BNP for the same model, with statistics of its own."""
        return copy.deepcopy(self, {id(module): module for module in self.model.modules()})

    def step(self) -> None:
        """Precondition the gradients now; call it between `backward` and `optimizer.step()`.

        For loops that do something in between, such as clipping. Otherwise `attach` is simpler.
        """
        if self._attachment is not None:
            raise RuntimeError(
                "This BNP is attached to an optimizer, whose step() preconditions the gradients; "
                "to do that by hand, make a BNP and do not attach() it."
            )
        if not self._watch.active:
            raise RuntimeError(
                "This BNP is detached, as copies of a BNP are, and sees no input; attach() it or make a new one."
            )
        self._step(None, True)

    def attach(self, optimizer: Optimizer) -> "BNP":
        """Make every `optimizer.step()` precondition the gradients first.

        Only layers whose weight is among the optimizer's parameters are touched, so that several optimizers
        of one model can each have a BNP of their own. Steps with a closure work too: the gradients are
        preconditioned each time the closure has run, and the statistics move at its first run.

        Returns:
            This object.
        """
        check_optimizer(optimizer)
        if self._attachment is not None:
            raise RuntimeError("This BNP is attached already; detach() it first, or make one BNP per optimizer.")
        mine = {id(observer.weight) for observer in self._watch.observers.values()} & parameter_ids(optimizer)
        if not mine:
            raise ValueError("The optimizer holds the weight of none of this model's layers; is it another model's?")
        if any(mine & other.layers for other in attached_to(optimizer)):
            raise RuntimeError("Another BNP is attached to this optimizer for the same layers; detach() that first.")
        self._watch.start()
        self._attachment = Attachment(optimizer, mine, self._step)
        self._watch.neglect.expect(optimizer)
        return self

    def detach(self) -> None:
        """Leave the optimizer and the model: all hooks are taken off.

        The statistics stay, and `attach` takes them up again.
        """
        if self._attachment is not None:
            self._attachment.detach()
            self._attachment = None
            self._watch.neglect.expect(None)
        self._watch.stop()
        self._alarm.check(now=True)

    def discard(self) -> None:
        """Forget the rows seen since the last step, as when their gradient is thrown away.

        Gradients set to None or to zero do this by themselves at the next backward.
        """
        self._kernels.forget()
        self._discard()

    def _discard(self) -> None:
        for observer in self._watch.observers.values():
            observer.ledger.discard()

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on from here: the averages of each layer and its pending rows."""
        self._watch.synchronize()
        self._alarm.check(now=True)  # no step does while a CUDA graph is replayed
        return state.save(self._watch.observers, self.options)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up a saved state.

        Raises:
            ValueError: If it belongs to another model or to other options; nothing is changed then.
        """
        self._watch.synchronize()
        state.load(state_dict, self._watch.observers, self.options)

    def report(self) -> Report:
        """What is preconditioned, what is not and why, layer by layer. Print it."""
        optimizer = None if self._attachment is None else self._attachment.optimizer
        self._alarm.check(now=True)
        return describe(self._watch, self.options, optimizer)

    def __enter__(self) -> "BNP":
        """Use as a context manager, which detaches at the end."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Detach."""
        self.detach()

    def __repr__(self) -> str:
        """The options and the number of layers."""
        options = ", ".join(f"{name}={value!r}" for name, value in asdict(self.options).items())
        return f"BNP({type(self.model).__name__}, {len(self._watch.observers)} layers, {options})"

    def _step(self, parameters: set[int] | None, fold: bool) -> None:
        """One step over the layers whose weight is among the parameters (None: all)."""
        self._watch.synchronize()
        eager = not torch.compiler.is_dynamo_compiling()
        if eager and self._watch.neglect.count:
            self._watch.neglect.stepped()
        alone = self.options.statistics == "batch" and not self._said_single_row
        updates: list[Update] = []
        unheard: list[Observer] = []
        shared: list[tuple[Ledger, Tensor]] = []
        for observer in self._watch.suited:
            weight: nn.Parameter = observer.module._parameters["weight"]  # type: ignore[assignment]
            grad = weight.grad
            if grad is not None and weight.requires_grad and (parameters is None or id(weight) in parameters):
                update = observer.update(weight, grad, parameters)
                if update is None:
                    unheard.append(observer)
                else:
                    updates.append(update)
                    if eager and len(observer.ledger.followers) > 1:
                        _refuse_spent(observer, grad)
                        shared.append((observer.ledger, grad))
                    if alone and not isinstance(update.batch.count, Tensor) and update.batch.count == 1:
                        self._say_single_row(observer)
        flags = self._kernels.precondition(updates, fold)
        for ledger, grad in shared:
            ledger.spend(grad)
        for update in updates:
            del update.weight, update.bias, update.batch  # whoever keeps it for the next step holds no gradients
        self._discard()
        if unheard and eager:
            self._watch.say_problems(unheard)
            _say_unheard([observer for observer in unheard if observer.problem is None])
        if fold:
            for flag in flags:
                self._alarm.watch(flag)
        self._alarm.check()

    def _say_single_row(self, observer: Observer) -> None:
        if not self._said_single_row:
            self._said_single_row = True
            say(
                f"Layer {observer.name!r} saw a single row in a step, which has no variance of its own: with "
                "statistics='batch' the running statistics are used in such a step."
            )


def _names(skip: str | Iterable[str]) -> tuple[str, ...]:
    names = (skip,) if isinstance(skip, str) else tuple(skip) if isinstance(skip, Iterable) else (skip,)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"skip must be the name of a layer or a list of names, not {skip!r}.")
    return names


def _refuse_spent(observer: Observer, grad: Tensor) -> None:
    if observer.ledger.is_spent(grad):
        raise RuntimeError(
            f"The gradient of layer {observer.name!r} was preconditioned by another BNP since it arrived and would be "
            "a second time; detach() one of the two, or give each its own layers (skip)."
        )


def _say_unheard(observers: list[Observer]) -> None:
    names = [observer.name for observer in observers if not observer.said_unheard]
    for observer in observers:
        observer.said_unheard = True
    if names:
        say(
            f"No input was seen for {', '.join(map(repr, names))} since the last step, so their gradients are left "
            "as they are. (A layer is seen when it is called as a module, which nn.MultiheadAttention does not do with "
            "its out_proj; one with a forward of its own, when that calls torch.nn.functional with its weight while "
            "gradients are enabled; none by code that was compiled without BNP: torch.compiler.reset() drops that.)"
        )


def _say_not_finite() -> None:
    say(
        "A step had inputs or gradients that are not finite; the running averages of these layers were left as they "
        "were. BNP.report() counts such steps for each layer."
    )


def _say_if_distributed() -> None:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        say(
            "BNP does not share its statistics between processes: with different data in each of them their weights "
            "will drift apart."
        )
