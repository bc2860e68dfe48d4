"""What BNP would do to the gradients of its next step, tried out without a trace in it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.optim import Optimizer

from trimtab.bnp.attachment import attached_to
from trimtab.bnp.deferred import DeferredAlarm
from trimtab.bnp.kernels import Kernels
from trimtab.bnp.preconditioner import BNP
from trimtab.bnp.watch import Watch


@contextmanager
def rehearsal(bnp: BNP, parameters: set[int]) -> Iterator[Callable[[], None]]:
    """A double of a BNP observes what its model does; call what is returned to do the double's step.

    For a time when the model has other parameters than its own (`torch.func.functional_call`): the rows are those of
    the forwards and backwards within, the running averages are copies, and what `step` changes are the gradients of
    those other parameters. It is all as in the BNP's own step, whose code it runs. Nothing is said.

    Args:
        bnp: Whose step is tried out.
        parameters: The identities of the other parameters; layers that have none of them for a weight are left alone.
    """
    kernels = Kernels(bnp.options)
    watch = Watch(bnp.model, bnp.options, bnp._watch._skip, kernels)
    observers = {name: observer for name, observer in watch.observers.items() if id(observer.weight) in parameters}
    watch.observers = observers
    known = {id(observer.module): observer for observer in bnp._watch.observers.values()}
    for observer in observers.values():
        observer.said_unheard = observer.said_unsuited = True
        original = known.get(id(observer.module))
        running = None if original is None else original.running
        observer.running = None if running is None else running.clone()

    double = object.__new__(BNP)  # not copy.copy, which gives a detached one with hooks of its own to take off
    double.__dict__.update(bnp.__dict__)
    double._watch, double._kernels, double._attachment, double._said_single_row = watch, kernels, None, True
    double._alarm = DeferredAlarm(lambda: None)
    for observer in observers.values():
        observer.hook(even_if_silent=True)  # hooks are silent while something is measured
    try:
        yield lambda: double._step(parameters, True)
    finally:
        watch.stop()


def bnps_of(optimizer: Optimizer) -> list[BNP]:
    """The BNPs that are attached to an optimizer."""
    owners = [getattr(attachment._precondition, "__self__", None) for attachment in attached_to(optimizer)]
    return [owner for owner in owners if isinstance(owner, BNP)]
