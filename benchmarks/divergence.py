"""At which multiples of η* training begins to rise and to fail: python benchmarks/divergence.py --workers 16.

27 small networks × squared loss and cross-entropy × SGD, momentum 0.9, BNP and Adam × three data sets, 256 samples of
each as one batch, at most 200 steps. η* is 2(1 + μ)/λ, with λ as `trimtab.predict` measures it at the start, on the
same samples and in train mode. For BNP and Adam it is that of SGD. trimtab.prediction.divergence says what rising and
failing are.

Each cell is a line of JSON in --out, written when it is done, so that a run that was stopped goes on where it was.
--table prints the ranges; --write puts them where `print(prediction)` has them from. MNIST and CIFAR-10 have to be
there (TRIMTAB_DATA, or data), and the digits need scikit-learn. For a machine that has neither, --samples FILE keeps
what was drawn of them, and takes it from there if there is such a file. Images are made smaller, to 16×16 or less.
"""

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from divergence_networks import CLASSES, DATA, NETWORKS, SAMPLES, draw, samples
from divergence_table import summary, table
from json_lines import append_line, read_lines
from torch import Tensor

from trimtab.prediction import measure_lambda_max
from trimtab.prediction.batch_statistics import has_batch_statistics
from trimtab.prediction.divergence import OPTIMIZERS, Problem, classification, edges, momentum_of
from trimtab.records import machine
from trimtab.theory.mean_field.eigenvalue import max_learning_rate

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "divergence.jsonl"
SUMMARY = HERE.parent / "src" / "trimtab" / "prediction" / "seen_in_training.json"
LOSSES = ("squared", "cross_entropy")

Data = dict[str, tuple[Tensor, Tensor]]
_DATA: Data = {}  # of a worker


@dataclass(frozen=True)
class Cell:
    """One training to be looked at.

    Attributes:
        network: One of `NETWORKS`.
        loss: One of `LOSSES`.
        optimizer: One of `OPTIMIZERS`.
        data: One of `DATA`.
        seed: Of the weights.
    """

    network: str
    loss: str
    optimizer: str
    data: str
    seed: int = 0


def cells(seed: int = 0) -> list[Cell]:
    """All of them; what takes longest comes first, so that workers end together."""
    crossed = product(NETWORKS, LOSSES, OPTIMIZERS, DATA, [seed])
    return sorted((Cell(*names) for names in crossed), key=lambda c: ("conv" not in c.network, -DATA.index(c.data)))


def problem(cell: Cell, data: Data) -> Problem:
    """Model, loss on all samples, and the loss of the best constant output: the frequencies of the classes."""
    x, classes = data[cell.data]
    return classification(draw(cell.network, tuple(x.shape[1:]), cell.seed), x, classes, CLASSES, cell.loss)


def look(cell: Cell, data: Data) -> dict[str, Any]:
    """What was found, with all that is to be known of it."""
    begin = time.process_time()
    row: dict[str, Any] = asdict(cell)
    try:
        asked = problem(cell, data)
        row["mode"] = "batch" if has_batch_statistics(asked.model) else "none"
        x, _ = data[cell.data]
        measured = measure_lambda_max(asked.model, x, loss=cell.loss, seconds=1e6, memory=1e15)  # type: ignore[arg-type]
        largest = max_learning_rate(measured.lambda_max, momentum_of(cell.optimizer))
        row |= {"samples": len(x), "lambda_max": measured.lambda_max, "max_learning_rate": largest}
        row |= asdict(edges(asked, cell.optimizer, largest))
    except Exception as error:  # one cell of hundreds; it is told in the table, and tried again
        row["problem"] = f"{type(error).__name__}: {error}"
    row["seconds"] = round(time.process_time() - begin, 2)  # of a processor
    return row | {"torch": torch.__version__, "machine": machine()}


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, the last one of each cell; what a killed run has not finished writing is left out."""
    found: dict[Cell, dict[str, Any]] = {}
    for row in read_lines(path):
        with suppress(KeyError, TypeError):  # not a line of ours
            found[Cell(*(row[name] for name in Cell.__dataclass_fields__))] = row
    return list(found.values())


def done(path: Path) -> set[Cell]:
    """The cells that need not be looked at again."""
    return {Cell(*(row[name] for name in Cell.__dataclass_fields__)) for row in read(path) if "problem" not in row}


def take(path: Path | None) -> Data:
    """Samples of all data sets: from a file, or drawn, and then kept in it."""
    if path is not None and path.exists():
        found: Data = torch.load(path, weights_only=True)
        return found
    found = {name: samples(name) for name in DATA}
    if path is not None:
        torch.save(found, path)
    return found


def _begin(kept: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    _DATA.update({name: (torch.from_numpy(x), torch.from_numpy(y)) for name, (x, y) in kept.items()})


def _work(cell: Cell) -> dict[str, Any]:
    return look(cell, _DATA)


def run(todo: list[Cell], data: Data, out: Path, workers: int, limit: float) -> int:
    """Look at cells until all are done or the time is over; how many were."""
    kept = {name: (x.numpy(), y.numpy()) for name, (x, y) in data.items()}
    begin, count = time.monotonic(), 0
    with multiprocessing.get_context("spawn").Pool(workers, _begin, (kept,)) as pool:
        rows = pool.imap_unordered(_work, todo)
        while count < len(todo):
            try:
                row = rows.next(timeout=max(begin + limit - time.monotonic(), 0.01))
            except multiprocessing.TimeoutError:
                break  # what is under way is given up
            append_line(out, row)
            count += 1
            print(f"{count}/{len(todo)} {time.monotonic() - begin:6.0f} s  {told(row)}", flush=True)
    return count


def told(row: dict[str, Any]) -> str:
    """A cell in one line."""
    name = f"{row['network']}, {row['loss']}, {row['optimizer']}, {row['data']}"
    if "problem" in row:
        return f"{name}: {row['problem']}"
    ends = [" to ".join("–" if end is None else f"{end:.3g}" for end in row[edge]) for edge in ("rise", "fail")]
    return f"{name}: η* {row['max_learning_rate']:.3g}, rises {ends[0]}, fails {ends[1]}, {row['seconds']} s"


def chosen(words: Iterable[str], seed: int) -> list[Cell]:
    """The cells that have each of the words in one of their names."""
    return [
        cell
        for cell in cells(seed)
        if all(any(word in part for part in (cell.network, cell.loss, cell.optimizer, cell.data)) for word in words)
    ]


def main() -> None:
    """Look at what is not done yet, or tell what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="lines of JSON, one for each cell")
    parser.add_argument("--workers", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="cells with each of these in a name")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    parser.add_argument("--limit-seconds", type=float, default=1e9, help="stop after this time; it can be continued")
    parser.add_argument("--samples", type=Path, metavar="FILE", help="keep the samples here, or take them from here")
    parser.add_argument("--table", action="store_true", help="print a table of what is there")
    parser.add_argument("--write", action="store_true", help=f"write what is there to {SUMMARY.name}")
    options = parser.parse_args()
    if options.table or options.write:
        rows = read(options.out)
        if options.table:
            print(table(rows))
        if options.write:
            SUMMARY.write_text(json.dumps(summary(rows), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return
    before = done(options.out)
    todo = [cell for cell in chosen(options.only, options.seed) if cell not in before]
    data = take(options.samples)
    print(f"{len(todo)} cells to do, {len(before)} done; {SAMPLES} samples; {machine()}.", flush=True)
    count = run(todo, data, options.out, options.workers, options.limit_seconds) if todo else 0
    print(f"{count} done, {len(todo) - count} left.")


if __name__ == "__main__":
    main()
