"""What a person sees while a run goes on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from trimtab.training.run import Progress


@contextmanager
def display(name: str, execution: str = "") -> Iterator[Callable[[Progress], None]]:
    """A line that is kept up to date: epoch, loss, accuracy, images per second, time left. It fits 80 columns.

    Before it, how the steps are taken, if that is told.
    """
    console = Console(stderr=True)
    console.print(name, highlight=False)
    if execution:
        console.print(execution, highlight=False, markup=False, soft_wrap=True)
    columns = BarColumn(bar_width=8), TextColumn("{task.fields[state]}"), TextColumn("left"), TimeRemainingColumn()
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None, state="")

        def show(progress: Progress) -> None:
            bar.update(task, completed=progress.step, total=progress.total, state=_state(progress))

        yield show


def _state(progress: Progress) -> str:
    parts = [f"epoch {progress.epoch:.1f}"]
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.3g}")
    if progress.accuracy is not None:
        parts.append(f"train {100 * progress.accuracy:.1f}%")
    if progress.evaluated is not None:
        parts.append(f"{progress.part} {100 * progress.evaluated:.1f}%")
    parts.append(f"{progress.images_per_second:,.0f} images/s")
    return " ".join(parts)
