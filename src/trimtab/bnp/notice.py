"""What a user should hear of."""

import warnings


class TrimtabWarning(UserWarning):
    """Something a user should know of that does not stop the training."""


def say(message: str) -> None:
    """Warn. Whoever calls this sees to it that it is said once."""
    warnings.warn(message, TrimtabWarning, stacklevel=3)
