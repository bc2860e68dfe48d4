"""What a person sees while a run goes on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from trimtab.training.run import Progress


@contextmanager
def display(name: str) -> Iterator[Callable[[Progress], None]]:
    """A line that is kept up to date: epoch, loss, accuracy, images per second, time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None, state="")

        def show(progress: Progress) -> None:
            bar.update(task, completed=progress.step, total=progress.total, state=_state(progress))

        yield show


def _state(progress: Progress) -> str:
    parts = [f"epoch {progress.epoch:.2f}"]
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4g}")
    if progress.accuracy is not None:
        parts.append(f"accuracy {100 * progress.accuracy:.1f} %")
    if progress.evaluated is not None:
        parts.append(f"held out {100 * progress.evaluated:.1f} %")
    parts.append(f"{progress.images_per_second:,.0f} images/s")
    return "  ".join(parts)
