"""Options of probes, checked when a probe is made: what is wrong is one sentence that names the option."""

import inspect
import math
import numbers
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.bnp.attachment import innermost
from trimtab.norms.statistics import canonical_statistics
from trimtab.probes.batches import samples_of

LARGEST_SEED = 2**64 - 1


def check_whole(probe: object, *names: str, minimum: int, optional: bool = False) -> None:
    """Refuse options that are not whole numbers of at least `minimum`; `optional` ones may be None.

    Raises:
        ValueError: If an option is something else.
    """
    for name in names:
        value = getattr(probe, name)
        if optional and value is None:
            continue
        if not (_is_whole(value) and value >= minimum):
            raise ValueError(
                f"{name} must be a whole number, {minimum} or larger{', or None' if optional else ''}, not {value!r}."
            )
        object.__setattr__(probe, name, int(value))


def check_seed(probe: object) -> None:
    """Refuse a `seed` that torch's generators do not take.

    Raises:
        ValueError: If it is such.
    """
    value = vars(probe)["seed"]
    if not (_is_whole(value) and 0 <= value <= LARGEST_SEED):
        raise ValueError(f"seed must be a whole number from 0 to 2**64 - 1, not {value!r}.")
    object.__setattr__(probe, "seed", int(value))


def check_positive(probe: object, name: str) -> None:
    """Refuse all but positive, finite numbers and None.

    Raises:
        ValueError: If the option is something else.
    """
    value = getattr(probe, name)
    if value is None:
        return
    if not (is_finite(value) and value > 0):
        raise ValueError(f"{name} must be a positive number or None, not {value!r}.")
    object.__setattr__(probe, name, float(value))


def check_choice(probe: object, name: str, choices: Iterable[str]) -> None:
    """Refuse all but these words.

    Raises:
        ValueError: If the option is something else.
    """
    value = getattr(probe, name)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}.")


def check_statistics(probe: object) -> None:
    """Refuse all but the words for `statistics`; former ones are replaced, with a DeprecationWarning.

    Raises:
        ValueError: If it is something else.
    """
    object.__setattr__(probe, "statistics", canonical_statistics(vars(probe)["statistics"]))


def check_flag(probe: object, *names: str) -> None:
    """Refuse all but True and False.

    Raises:
        ValueError: If an option is something else.
    """
    for name in names:
        if not isinstance(getattr(probe, name), bool):
            raise ValueError(f"{name} must be True or False, not {getattr(probe, name)!r}.")


def check_instance(probe: object, name: str, kind: type, words: str) -> None:
    """Refuse all but objects of a class and None.

    Raises:
        ValueError: If the option is something else.
    """
    value = getattr(probe, name)
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{name} must be {words} or None, not {described(value)}.")


def check_multiples(probe: object) -> None:
    """Refuse `multiples` that are not some finite numbers other than 0, and make a tuple of them.

    Raises:
        ValueError: If they are something else.
    """
    value = vars(probe)["multiples"]
    several = list(value) if isinstance(value, Iterable) else []
    if not several or not all(is_finite(s) and s != 0 for s in several):
        raise ValueError(f"multiples must be one finite number or more, none of them 0, not {value!r}.")
    object.__setattr__(probe, "multiples", tuple(map(float, several)))


def check_optimizer(probe: object) -> None:
    """Refuse an `optimizer` that is none; of one that only wraps another, take that.

    Raises:
        ValueError: If it is such.
    """
    object.__setattr__(probe, "optimizer", innermost(vars(probe)["optimizer"]))
    check_instance(probe, "optimizer", torch.optim.Optimizer, "an optimizer of torch.optim")


def check_strings(probe: object, name: str) -> None:
    """Refuse all but a string or several, and make a tuple of it.

    Raises:
        ValueError: If the option is something else.
    """
    value = getattr(probe, name)
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, list | tuple) or not all(isinstance(each, str) for each in several):
        raise ValueError(f"{name} must be a list or tuple of layers' names, not {value!r}.")
    object.__setattr__(probe, name, tuple(several))


def check_function(probe: object, name: str, arguments: str) -> None:
    """Refuse all but functions of two arguments and None.

    Raises:
        ValueError: If the option is something else.
    """
    value = getattr(probe, name)
    if value is not None and not (callable(value) and accepts_two_arguments(value)):
        raise ValueError(f"{name} must be a function that is called as {name}({arguments}), not {described(value)}.")


def check_data(probe: object) -> None:
    """Refuse `data` without samples.

    Raises:
        ValueError: If it is neither None nor a batch with a tensor.
    """
    value = vars(probe)["data"]
    if value is not None and not samples_of(value):
        raise ValueError(f"data must be a batch with a tensor of samples, or None, not {described(value)}.")


def check_increasing(probe: object, name: str, what: str, allowed: Callable[[Any], bool]) -> None:
    """Refuse all but several increasing numbers, and make a tuple of them.

    Raises:
        ValueError: If the option is something else.
    """
    value = getattr(probe, name)
    several: list[Any] = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [None]
    if not all(is_finite(each) and allowed(each) for each in several) or several != sorted(set(several)):
        raise ValueError(f"{name} must be {what}, the smallest first, not {described(value)}.")
    object.__setattr__(probe, name, tuple(several))


def check_call(model: Any, loss_fn: Any) -> None:
    """Refuse what a probe cannot be called with.

    Raises:
        TypeError: If the model is no module, or `loss_fn` cannot be called with a model and a batch.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {described(model)}.")
    if not callable(loss_fn):
        raise TypeError(f"loss_fn must be a function, called as loss_fn(model, batch), not {described(loss_fn)}.")
    if _is_torchs_loss(loss_fn):
        raise TypeError(
            f"loss_fn is called as loss_fn(model, batch), but {described(loss_fn)} takes outputs and targets: "
            "give a function of your own, such as lambda model, batch: criterion(model(batch[0]), batch[1])."
        )
    if not accepts_two_arguments(loss_fn):
        raise TypeError(f"loss_fn is called as loss_fn(model, batch), which {described(loss_fn)} does not accept.")


def accepts_two_arguments(function: Callable[..., Any]) -> bool:
    """Whether a function can be called with two arguments, or does not say what it takes."""
    try:
        signature = inspect.signature(function.forward if isinstance(function, nn.Module) else function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(None, None)
    except TypeError:
        return False
    return True


def described(value: object) -> str:
    """A value in a sentence, without the many lines that a module or an optimizer has."""
    if inspect.isroutine(value):
        try:
            return f"{value.__name__}{inspect.signature(value)}"
        except (AttributeError, TypeError, ValueError):
            return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, str | int | float | None):
        return repr(value)
    return f"an object of {type(value).__name__}"


def is_finite(value: Any) -> bool:
    """Whether it is a number (a tensor of one number is, too), and a finite one."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and value.dtype.is_floating_point and bool(value.isfinite())
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _is_torchs_loss(loss_fn: Any) -> bool:
    """Whether it is one of torch's own losses, which know nothing of a model."""
    home = type(loss_fn) if isinstance(loss_fn, nn.Module) else loss_fn
    return getattr(home, "__module__", None) in ("torch.nn.modules.loss", "torch.nn.functional")


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
