"""Training loss and accuracy over the steps of the last epoch, wherever the records of the training loss fall."""

from typing import Any

from trimtab.training.session import Session

Sums = tuple[int, float, float]
"""Steps, and the losses and accuracies summed over them."""
NOTHING: Sums = (0, 0.0, 0.0)


class LastEpoch:
    """Sums over the last epoch's steps, or over all steps of a run that is shorter.

    The training loss is recorded as means over stretches of steps, each of which begins at the last record. Of the
    stretch in which the last epoch begins, what came before it is subtracted: so nothing is added to a step, and no
    record is moved.
    """

    def __init__(self, session: Session) -> None:
        """Wait for the last epoch of a session."""
        self._session = session
        self._first = max(session.total - session.steps_per_epoch, 0)
        self._known = True
        self._done = self._before = NOTHING

    def look(self) -> None:
        """To be called after each step, before its stretch is recorded."""
        if self._known and self._session.step == self._first:
            self._before = self._stretch()

    def add(self) -> None:
        """To be called where a stretch ends, before its sums are taken."""
        if self._known and self._session.step >= self._first:
            self._done, self._before = self._so_far(), NOTHING

    def means(self) -> tuple[float | None, float | None]:
        """Mean loss and accuracy; None if a part of the epoch is not known."""
        if not self._known:
            return None, None
        steps, loss, correct = self._so_far()
        return loss / steps, correct / steps if self._session.dataset.classes else None

    def state(self) -> list[Any] | None:
        """The sums, for a checkpoint."""
        return [self._first, *self._done, *self._before] if self._known else None

    def restore(self, state: list[Any] | None) -> None:
        """Go on with the sums of a checkpoint, at the step at which the session is now."""
        step = self._session.step
        if state is not None and state[0] == self._first:
            self._done, self._before = (state[1], state[2], state[3]), (state[4], state[5], state[6])
        elif step == self._first:  # of a run that was made longer, or a checkpoint of an earlier version
            self._before = self._stretch()
        else:
            self._known = step < self._first

    def _stretch(self) -> Sums:
        steps = self._session.steps_in_means
        loss, accuracy = self._session.means()
        return steps, steps * loss, steps * (accuracy or 0.0)

    def _so_far(self) -> Sums:
        stretch = self._stretch()
        done, now, before = self._done, stretch, self._before
        return done[0] + now[0] - before[0], done[1] + now[1] - before[1], done[2] + now[2] - before[2]
