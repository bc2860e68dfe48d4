"""A run that starts from the weights of another one, with its BatchNorm folded into them or not."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from trimtab.bnp import fold_batchnorm
from trimtab.norms import Norm
from trimtab.training.loading import load_run
from trimtab.training.session import Session
from trimtab.training.settings import Settings


def take_over_weights(session: Session, folder: Path | None = None) -> None:
    """Replace the drawn weights of a session by those of the run that its setting `init_from` names, if it names one.

    Buffers, such as running statistics, are taken over too; the optimizer, its schedule and BNP's averages begin anew.
    `session.initial` then says where the weights come from.

    Args:
        session: A run that has not begun.
        folder: Its folder, which cannot be that of the other run.

    Raises:
        ValueError: If there is no such run, its weights do not fit, or its BatchNorm cannot be folded.
    """
    settings, source = session.settings, session.settings.init_from
    if source is None:
        return
    if folder is not None and folder.resolve() in (Path(source).resolve(), Path(source).resolve().parent):
        raise ValueError(f"init_from: {source} is the run itself; name another folder with --out")
    try:
        other = load_run(source)
    except ValueError as error:
        raise ValueError(f"init_from: {error}") from error
    before, here = _told_apart(other.settings), _told_apart(settings)
    if settings.fold:  # then here is no norm
        for name in _OF_NORMS:
            del before[name], here[name]
    for name, theirs in before.items():
        if theirs != here[name]:
            flag = name.replace("_", "-")
            flag = f"--{'' if theirs else 'no-'}{flag}" if isinstance(theirs, bool) else f"--{flag} {theirs}"
            raise ValueError(f"init_from: the run in {source} has {name} {theirs}, not {here[name]}; give {flag}")
    model = other.model
    if settings.fold:
        try:
            model = fold_batchnorm(model)
        except ValueError as error:
            raise ValueError(f"init_from: the network in {source}: {error}") from error
    ours = session.model.state_dict()
    weights = _fitting(model.state_dict(), ours, source, folded=settings.fold)
    there, now = other.settings.parsed_method.norm, settings.parsed_method.norm
    if not settings.fold and _in_evaluation(there) != _in_evaluation(now):
        raise ValueError(f"init_from: the run in {source} has the norm {there}, not {now}; give --method {there}")
    session.model.load_state_dict(weights)
    session.initial = {"run": source, "step": other.step, "folded": settings.fold, "digest": _digest(weights)}


_OF_NORMS = ("norm_eps", "group_size", "before_activation")


_LIKE_BN = ("brn", "ghost", "noisy-bn", "bn-stopgrad")


def _in_evaluation(norm: str) -> str:
    """The norm that is the same function of weights and statistics in evaluation."""
    norm = norm.removesuffix("-pre")
    return "bn" if norm in _LIKE_BN else norm


def _told_apart(settings: Settings) -> dict[str, object]:
    """What changes the function of a network and neither names nor shapes of its weights."""
    return {
        "network": settings.network,
        "normalize": settings.normalize,
        "activation": settings.activation or "relu",
        "norm_eps": settings.norm_eps,
        "group_size": settings.group_size,
        "before_activation": settings.before_activation or Norm.parse(settings.parsed_method.norm).before_activation,
    }


def _fitting(
    theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], source: str, *, folded: bool
) -> dict[str, Tensor]:
    """Their tensors under our names.

    Where BatchNorm was folded, layers have other names, since it was one of the layers that are counted: then they go
    by their order.
    """
    hint = "give --method vanilla or bnp" if folded else "give the same settings as there, or --fold"
    if not folded and theirs.keys() != ours.keys():
        odd = min(theirs.keys() ^ ours.keys())
        where = "there" if odd in theirs else "here"
        raise ValueError(f"init_from: the network in {source} is another one, since only {where} is {odd}; {hint}")
    if [_kind(name) for name in theirs] != [_kind(name) for name in ours]:
        raise ValueError(f"init_from: the folded network in {source} has other weights and biases than this; {hint}")
    pairs = zip(ours, theirs, strict=True) if folded else ((name, name) for name in ours)
    weights = {}
    for name, their_name in pairs:
        weights[name] = theirs[their_name]
        if weights[name].shape != ours[name].shape:
            shapes = f"{tuple(weights[name].shape)}, not {tuple(ours[name].shape)}"
            raise ValueError(f"init_from: {their_name} in {source} has the shape {shapes} as here; {hint}")
    return weights


def _kind(name: str) -> str:
    return name.rpartition(".")[2]


def _digest(weights: Mapping[str, Any]) -> str:
    """SHA-256 of names and values."""
    digest = hashlib.sha256()
    for name, tensor in weights.items():
        digest.update(name.encode() + b"\0" + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
