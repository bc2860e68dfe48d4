"""What a case must come to."""

import torch
from torch import Tensor

from tests.bnp.fuzz.play import Gradients, Played, play

Rounding = dict[torch.dtype, float]
"""For numbers of a type: by how much of the largest number in a tensor they may differ."""

_ROUNDING = {torch.float64: 1e-7, torch.float32: 2e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}
# After these, what should become of the gradients is not defined; no memory may be touched wrongly.
_VAGUE = {"other_groups", "another_shape", "with_other_data"}
# With these, numbers have been of another type before.
_COARSE = {"autocast", "another_type", "bias_of_another_type", "state"}


def problem(seed: int) -> tuple[str, list[str]]:
    """What is wrong in the case of a seed, or nothing; and the kinds of things in it.

    - With fast=True all is as with fast=False, up to rounding; also the sentence with which it is refused.
    - An error is one of our sentences, or it is torch's about the model and comes without BNP, too.
    - A layer for which BNP was told something wrong keeps its gradient, and that is said, or it is refused.
    - A layer that changes its input is treated like one that is given the changed input, or keeps its gradient.
    """
    none, plain, fast = play(seed, "none"), play(seed, "plain"), play(seed, "fast")
    return _problem(seed, none, plain, fast), plain.kinds


def _problem(seed: int, none: Played, plain: Played, fast: Played) -> str:
    for name, played in (("fast=False", plain), ("fast=True", fast)):
        if played.error == none.error:
            continue
        if played.raw:
            return f"{name}: an error that is no sentence of ours: {played.raw}"
        if played.error and not played.ours and not _VAGUE & set(played.kinds):
            return f"{name}: an error that does not come without BNP: {played.error.splitlines()[0]}"
        if none.error and not played.error and not _VAGUE & set(played.kinds):
            return f"{name}: the error without BNP does not come: {none.error.splitlines()[0]}"
    if _VAGUE & set(plain.kinds):
        return ""
    if plain.error != fast.error:
        return f"fast=False ends with {plain.error!r}, fast=True with {fast.error!r}"
    if sorted(plain.said) != sorted(fast.said):
        return f"fast=False says {plain.said}, fast=True says {fast.said}"
    rounding = _rounding(plain.kinds)
    for index, each in enumerate(plain.layers):
        if different := _different(plain, fast, index, rounding):
            return f"{each.kind}: gradients of fast=False and fast=True differ: {different}"
    if plain.statistics.keys() != fast.statistics.keys():
        return "statistics of other layers"
    for key, value in plain.statistics.items():
        if not _close(value, fast.statistics[key], rounding):
            return f"statistics {key}: {value} with fast=False, {fast.statistics[key]} with fast=True"
    return _wrong(plain, none) or _changed(seed, plain, none)


def _wrong(plain: Played, none: Played) -> str:
    """Whether layers of which BNP was told something wrong are left alone, and that is said."""
    if plain.error:
        return ""
    for index, each in enumerate(plain.layers):
        if each.wrong and not _left_alone(plain, none, index):
            return f"{each.kind}: it is preconditioned, or nothing is said of it"
    return ""


def _changed(seed: int, plain: Played, none: Played) -> str:
    """Whether layers that change their input are as those that are given the changed input."""
    if plain.error or not any(each.change is not None for each in plain.layers):
        return ""
    reference = play(seed, "reference")
    if reference.error:
        return f"the reference ends with {reference.error}"
    for index, each in enumerate(plain.layers):
        if each.change is None or _left_alone(plain, none, index):
            continue
        if different := _different(plain, reference, index, _rounding(plain.kinds)):
            return f"{each.kind}: not as with the changed input: {different}"
    return ""


def _rounding(kinds: list[str]) -> Rounding:
    coarse = _ROUNDING[torch.bfloat16]
    return dict.fromkeys(_ROUNDING, coarse) if _COARSE & set(kinds) else _ROUNDING


def _left_alone(plain: Played, none: Played, index: int) -> bool:
    """Whether the layer's gradients are those without BNP, to the bit, and a warning names it."""
    same = all(
        _identical(ours, theirs)
        for mine, other in zip(_only(plain, index), _only(none, index), strict=True)
        for ours, theirs in zip(mine, other, strict=True)
    )
    # A layer without a gradient is not spoken of.
    unsaid = bool({"frozen", "without"} & set(plain.kinds)) or all(
        isinstance(step[0], str) and step[0] == "None" for step in _only(plain, index)
    )
    return same and (unsaid or any(f"'branches.{index}'" in sentence for sentence in plain.said))


def _only(played: Played, index: int) -> list[Gradients]:
    """The gradients of one layer, step by step."""
    return [step[index] for step in played.gradients]


def _identical(ours: Tensor | str, theirs: Tensor | str) -> bool:
    if isinstance(ours, str) or isinstance(theirs, str):
        return isinstance(ours, str) and isinstance(theirs, str) and ours == theirs
    return ours.shape == theirs.shape and bool(((ours == theirs) | (ours.isnan() & theirs.isnan())).all())


def _different(ours: Played, theirs: Played, index: int, rounding: Rounding) -> str:
    """Where the gradients of a layer differ first.

    By how much they may depends on what they were before the step, of which constant inputs cancel almost all.
    """
    before = [step[index] for step in ours.before]
    for step, (mine, other, whole) in enumerate(zip(_only(ours, index), _only(theirs, index), before, strict=False)):
        numbers = [x.abs().nan_to_num(0, 0, 0) for x in whole if isinstance(x, Tensor) and x.numel()]
        size = max([float(x.max()) for x in numbers], default=0.0)
        for name, a, b in zip(("weight", "bias"), mine, other, strict=True):
            if not _close(a, b, rounding, size):
                return f"step {step}, {name}: {_brief(a)} and {_brief(b)}"
    return "" if len(ours.gradients) == len(theirs.gradients) else "another number of steps"


def _brief(value: Tensor | str) -> str:
    return value if isinstance(value, str) else f"{tuple(value.shape)} {value.dtype} {value.flatten()[:4].tolist()}"


def _close(ours: Tensor | str, theirs: Tensor | str, rounding: Rounding, size: float = 1.0) -> bool:
    if isinstance(ours, str) or isinstance(theirs, str):
        return isinstance(ours, str) and isinstance(theirs, str) and ours == theirs
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    if ours.is_meta or theirs.is_meta or not ours.numel():
        return ours.device == theirs.device
    if ours.is_complex():
        ours, theirs = torch.view_as_real(ours), torch.view_as_real(theirs)
    if not ours.is_floating_point():
        return torch.equal(ours, theirs)
    a, b = ours.double(), theirs.double()
    finite = a.isfinite()
    if not torch.equal(finite, b.isfinite()):
        return False
    a, b = torch.where(finite, a, 0), torch.where(finite, b, 0)
    return bool((a - b).abs().max() <= rounding[ours.dtype] * (a.abs().max() + max(size, 1) / 4))
