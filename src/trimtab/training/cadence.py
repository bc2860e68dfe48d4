"""At which steps of a run something is written down."""

from trimtab.training.settings import Settings, resolved

USUAL = 50
"""Steps between two records of the training loss."""
RECORDS = 20
"""So many records of it a short run has all the same, or one of each step."""
FEW, EVALUATIONS = 3, 4
"""A run of less than so many epochs has so many evaluations all the same."""


def record_every(total: int, settings: Settings) -> int:
    """Steps between two records of the training loss; there is one more after the last step."""
    return settings.log_every or max(1, min(USUAL, total // RECORDS))


def evaluation_is_due(step: int, total: int, settings: Settings, steps_per_epoch: int) -> bool:
    """Whether the network is evaluated after a step: so many times in a run, or at ends of epochs and at its end."""
    every, count = resolved(settings.evaluate_every), settings.evaluations
    if count is None and every == 1 and total < FEW * steps_per_epoch:
        count = EVALUATIONS
    if count is not None:
        return step * count // total > (step - 1) * count // total
    return step % (every * steps_per_epoch) == 0 or step == total
