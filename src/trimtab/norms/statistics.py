"""The values of `statistics=` in probes and predictions: which statistics BatchNorm layers normalize by."""

from typing import Any, Literal

from trimtab.notice import warn_user

Statistics = Literal["batch", "frozen", "running"]
"""`batch`: by the batch's statistics, with the gradient through them, as in training. `frozen`: by the batch's
statistics, without a gradient through them. `running`: by running averages, as in evaluation."""

WORDS: tuple[Statistics, ...] = ("batch", "frozen", "running")
_FORMER: dict[str, Statistics] = {"train": "batch", "eval": "running"}


def canonical_statistics(value: Any, words: tuple[Statistics, ...] = WORDS) -> Statistics:
    """A value for `statistics=`, checked; the former words `train` and `eval` mean `batch` and `running`.

    Args:
        value: What was given.
        words: Those that have a meaning where it was given.

    Raises:
        ValueError: If it is none of them.
    """
    word = _FORMER.get(value, value) if isinstance(value, str) else value
    if not isinstance(word, str) or word not in words:
        raise ValueError(f"statistics must be one of {', '.join(map(repr, words))}, not {value!r}.")
    if value != word:
        warn_user(f"statistics={value!r} is now statistics={word!r}; the former word will go.", DeprecationWarning)
    return word
