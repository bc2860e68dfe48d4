"""The progress display: a bar on a terminal, otherwise a line from time to time."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from trimtab.cli.terminal import Terminal
from trimtab.training.compare import ComparisonProgress
from trimtab.training.run import Progress
from trimtab.training.sweep.runner import SweepProgress

BAR = 8
BESIDE = BAR + len("  left 0:00:00")
"""So many columns of a terminal are not for words."""
FIRST_LINE, BETWEEN_LINES = 5.0, 30.0
"""Seconds, where there is no terminal: the first line comes early, to show that something happens."""

Show = Callable[[int, int, Sequence[str]], None]


@contextmanager
def display(name: str, execution: str = "") -> Iterator[Callable[[Progress], None]]:
    """A run: epoch, loss, accuracy, images per second, time left. Before it, how the steps are taken, if that is told.

    Lines have its name, since several runs may write into one file.
    """
    console = Terminal(stderr=True)
    for line in (name, execution):
        if line:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    with _bar_or_lines(console, f"{name}: ") as show:
        yield lambda progress: show(progress.step, progress.total, _state(progress))


@contextmanager
def display_comparison() -> Iterator[Callable[[ComparisonProgress], None]]:
    """All steps of all runs of a comparison."""
    with _bar_or_lines(Terminal(stderr=True), "all runs: ") as show:
        yield lambda progress: show(progress.done, progress.total, [progress.doing])


@contextmanager
def display_sweep() -> Iterator[Callable[[SweepProgress], None]]:
    """All steps of all networks of a sweep."""
    with _bar_or_lines(Terminal(stderr=True), "all networks: ") as show:
        yield lambda progress: show(progress.done, progress.total, [progress.doing])


@contextmanager
def display_doctor(name: str) -> Iterator[Callable[[int, int, float, int], None]]:
    """The steps that a doctor looks along at: loss, and how many findings there are by now."""
    with _bar_or_lines(Terminal(stderr=True), f"{name}: ") as show:
        yield lambda step, total, loss, found: show(
            step, total, [f"loss {loss:.3g}", f"{found} finding{'' if found == 1 else 's'} so far"]
        )


@contextmanager
def _bar_or_lines(console: Terminal, prefix: str) -> Iterator[Show]:
    if not console.is_terminal or console.is_dumb_terminal:  # one that cannot go back in a line
        yield _Lines(console, prefix)
        return
    columns = BarColumn(bar_width=BAR), TextColumn("{task.fields[words]}"), TextColumn("left"), TimeRemainingColumn()
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None, words="")

        def show(done: int, total: int, words: Sequence[str]) -> None:
            bar.update(task, completed=done, total=total, words=_fitting(words, console.width - BESIDE))

        yield show


class _Lines:
    """Prints a line from time to time, for output that goes to a file."""

    def __init__(self, console: Terminal, prefix: str) -> None:
        self._console, self._prefix = console, prefix
        self._wait = FIRST_LINE
        self._printed = time.monotonic()
        self._began: tuple[float, int] | None = None

    def __call__(self, done: int, total: int, words: Sequence[str]) -> None:
        now = time.monotonic()
        if self._began is None:
            self._began = self._printed, done  # a run that goes on has steps that took no time here
        if now - self._printed < self._wait:
            return
        self._printed, self._wait = now, min(2 * self._wait, BETWEEN_LINES)
        since, before = self._began
        left = (now - since) * (total - done) / (done - before) if done > before else None
        parts = [f"step {done} of {total} ({100 * done // max(total, 1)} %)", *words]
        if left is not None:
            parts.append(f"{duration(left)} left")
        line = self._prefix + ", ".join(parts)
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> duration(83.2)
    '0:01:23'
    """
    return str(timedelta(seconds=round(seconds)))


def _fitting(words: Sequence[str], width: int) -> str:
    """As many of these as fit into a line, the first ones first."""
    fitting = ""
    for word in words:
        longer = f"{fitting} {word}".strip()
        if len(longer) > width:
            break
        fitting = longer
    return fitting


def _state(progress: Progress) -> list[str]:
    parts = [f"epoch {progress.epoch:.1f}"]
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.3g}")
    if progress.accuracy is not None:
        parts.append(f"train {100 * progress.accuracy:.1f}%")
    if progress.evaluated is not None:
        parts.append(f"{progress.part} {100 * progress.evaluated:.1f}%")
    parts.append(f"{progress.images_per_second:,.0f} images/s")
    return parts
