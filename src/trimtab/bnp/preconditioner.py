"""`BNP`: what a user holds. It observes a model's layers and changes their gradients at each step."""

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab import _torch
from trimtab.bnp import state
from trimtab.bnp.algorithm.step import LayerStep
from trimtab.bnp.attachment import Attachment, attached_to, check_optimizer, innermost, parameter_ids
from trimtab.bnp.backends import Backends
from trimtab.bnp.model_step import ModelStep
from trimtab.bnp.options import NoBias, Options, Spatial, Statistics, Tokens
from trimtab.bnp.report import Report, describe
from trimtab.bnp.rows.model import ObservedModel
from trimtab.bnp.rows.supported import skip_patterns
from trimtab.bnp.sync import Exchange, ExchangeJoinHook, Joinable, JoinHook, group_of
from trimtab.notice import warn_user


class BNP(Joinable):
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
        sync: With several processes (`torch.distributed`): add up the rows of all of them in each step, so that each
            makes the step of one process that has all of the data.
        group: The group of these processes; otherwise DistributedDataParallel's if `model` is or contains one, or all.

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
        sync: bool = True,
        group: Any = None,
    ) -> None:
        """Observe the model's layers from now on."""
        super().__init__()
        if not isinstance(model, nn.Module):
            raise TypeError(f"BNP takes a torch.nn.Module, not {type(model).__name__}.")
        if isinstance(model, torch.jit.ScriptModule):
            raise TypeError("BNP cannot watch what torch.jit has compiled: make it for the model before that.")
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
        backends = Backends(self.options)
        self._observed = ObservedModel(model, self.options, skip_patterns(skip), backends)
        if not isinstance(sync, bool):
            raise ValueError(f"sync must be True or False, not {sync!r}.")
        self._exchange = Exchange(sync, group_of(model) if group is None else group, self.options)
        self._step = ModelStep(self._observed, backends, self.options, self._exchange)
        self._attachment: Attachment | None = None
        self._observed.start()
        self._be_found()
        if not _torch.TELLS_BACKWARDS_APART:
            warn_user(
                "This version of torch does not tell one backward from another: if one comes by a layer without the "
                "gradient of its weight (inputs=...), or runs within another one (checkpointing with "
                "use_reentrant=True), BNP may count rows of this layer too often."
            )

    def _be_found(self) -> None:
        """Take part in a `Join`, and take the hooks along when nobody holds this BNP any longer."""
        self._exchange.joinable = weakref.ref(self)
        weakref.finalize(self, _let_go, self._observed).atexit = False

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which are detached: all but the bond to the optimizer. `ObservedModel` leaves its hooks out."""
        return {**self.__dict__, "_attachment": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Be a copy."""
        self.__dict__.update(state)
        self._be_found()

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
        if not self._observed.active:
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
        optimizer = innermost(optimizer)
        check_optimizer(optimizer)
        if self._attachment is not None:
            raise RuntimeError("This BNP is attached already; detach() it first, or make one BNP per optimizer.")
        held = parameter_ids(optimizer)
        held |= _torch.gathered_from(self.model, held)
        mine = {id(layer.weight) for layer in self._observed.layers.values()} & held
        if not mine:
            raise ValueError("The optimizer holds the weight of none of this model's layers; is it another model's?")
        if any(mine & other.layers for other in attached_to(optimizer)):
            raise RuntimeError("Another BNP is attached to this optimizer for the same layers; detach() that first.")
        self._observed.start()
        self._attachment = Attachment(optimizer, mine, self, self._step)
        self._observed.unused_steps.expect(optimizer)
        return self

    def detach(self) -> None:
        """Leave the optimizer and the model: all hooks are taken off.

        The statistics stay, and `attach` takes them up again.
        """
        if self._attachment is not None:
            self._attachment.detach()
            self._attachment = None
            self._observed.unused_steps.expect(None)
        self._observed.stop()
        self._step.alarm.check(now=True)

    def discard(self) -> None:
        """Forget the rows seen since the last step, as when their gradient is thrown away.

        Gradients set to None or to zero do this by themselves at the next backward; those of sharded weights only if
        they are set to None.
        """
        self._observed.discard()

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on from here: the averages of each layer and its pending rows."""
        self._observed.update()
        self._step.alarm.check(now=True)  # no step does while a CUDA graph is replayed
        return state.save(self._observed.layers, self.options)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up a saved state.

        Raises:
            ValueError: If it belongs to another model or to other options; nothing is changed then.
        """
        self._observed.update()
        state.load(state_dict, self._observed.layers, self.options)

    def statistics(self, layer: str | nn.Module) -> tuple[Tensor, Tensor] | None:
        """Copies of the running mean and variance of a layer's input; None if it has had no step.

        Args:
            layer: The layer, or its name in the model.
        """
        for name, observed in self._observed.layers.items():
            if (layer is observed.module or layer == name) and observed.running is not None:
                mean, variance = observed.running.estimate()
                return mean.clone(), variance.clone()
        return None

    @contextmanager
    def dry_run(
        self, parameters: Iterable[nn.Parameter], watch: Callable[[LayerStep], None] | None = None
    ) -> Iterator[Callable[[], None]]:
        """Try out what the next step would do to gradients, without a trace in this BNP.

        For a time when the model has other parameters than its own (`torch.func.functional_call`). What is seen are the
        forwards and backwards within; the running averages are copies; and calling what this gives replaces the
        gradients of those other parameters, as the next step would. Nothing is warned of.

        Args:
            parameters: The other parameters; layers that have none of them for a weight are left alone.
            watch: Called with the step of each layer, before its gradients are replaced.
        """
        identities = set(map(id, parameters))
        backends = Backends(self.options)
        observed = ObservedModel(self.model, self.options, self._observed.skip, backends)
        observed.layers = {name: layer for name, layer in observed.layers.items() if id(layer.weight) in identities}
        originals = {id(layer.module): layer.running for layer in self._observed.layers.values()}
        for layer in observed.layers.values():
            running = originals.get(id(layer.module))
            layer.running = None if running is None else running.clone()
        step = ModelStep(observed, backends, self.options, watch=watch)
        step.mute()
        for layer in observed.layers.values():
            layer.hooks.put_on()
        try:
            yield lambda: step(identities, True)
        finally:
            observed.close()

    def report(self) -> Report:
        """What is preconditioned, what is not and why, layer by layer. Print it."""
        optimizer = None if self._attachment is None else self._attachment.optimizer
        self._step.alarm.check(now=True)
        return describe(self._observed, self.options, optimizer)

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """For `torch.distributed.algorithms.Join`: what to do for the others when this process has no data left.

        Name the model, this BNP and the optimizer in this order: `Join([model, bnp, optimizer])`.
        """
        self._observed.update()
        self._exchange.check(self._observed.layers)  # one that has no data at all would not see when the others do
        return ExchangeJoinHook(self._exchange, self._observed.layers)

    @property
    def join_device(self) -> torch.device:
        """Where the exchange is, for `Join`."""
        return next(iter(self._observed.layers.values())).device

    @property
    def join_process_group(self) -> Any:
        """The group of processes, for `Join`."""
        return torch.distributed.group.WORLD if self._exchange.group is None else self._exchange.group

    def __enter__(self) -> "BNP":
        """Use as a context manager, which detaches at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Detach."""
        self.detach()

    def __repr__(self) -> str:
        """The options and the number of layers."""
        options = ", ".join(f"{name}={value!r}" for name, value in asdict(self.options).items())
        return f"BNP({type(self.model).__name__}, {len(self._observed.layers)} layers, {options})"


def _let_go(observed: ObservedModel) -> None:
    """What is left to do when nobody holds a BNP any longer."""
    observed.close()
    observed.unused_steps.gone()  # last: its warning may be an error
