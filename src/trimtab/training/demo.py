"""The demonstration: which way of training small networks is best at which batch size?

For every network, batch size and method the learning rate is chosen on validation data, among the same candidates
for all; then new seeds are trained at that rate and tested once.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

import torch

from trimtab.records import Cell, Evaluated
from trimtab.training.recipes import recipe
from trimtab.training.run import Run
from trimtab.training.session import Session
from trimtab.training.settings import Settings

NETWORKS = ("small-cnn", "small-mlp")
# Passes over the 1000 training images: enough steps at each batch size to tell the methods apart.
EPOCHS = {64: 10, 4: 2, 2: 1, 1: 1}
METHODS = ("vanilla", "bn", "ln", "bnp")
LEARNING_RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
TRAINING, VALIDATION = 1000, 397
TUNING_SEED = 0

Advance = Callable[[float], None]
Outcomes = dict[Settings, Evaluated | None]


def cells() -> list[Settings]:
    """What is compared, each with a learning rate still to be chosen."""
    return [
        Settings(
            data="digits",
            network=network,
            method=method,
            batch_size=size,
            epochs=epochs,
            evaluate_every=epochs,
            validation=VALIDATION,
            seed=TUNING_SEED,
        )
        for network, (size, epochs), method in product(NETWORKS, EPOCHS.items(), METHODS)
    ]


def trainable(cell: Settings) -> bool:
    """Whether the method can train at all: BatchNorm of one row has a variance of zero."""
    return not (cell.method == "bn" and cell.batch_size == 1 and cell.network == "small-mlp")


def amount_of_work(seeds: int) -> float:
    """All the steps to be taken, the unit in which progress is told."""
    return sum(_work(cell) * (len(LEARNING_RATES) + seeds) for cell in cells() if trainable(cell))


def compare(seeds: int, jobs: int, advance: Advance) -> list[Cell]:
    """Choose the learning rates, train and test.

    Args:
        seeds: How many runs at the chosen learning rate.
        jobs: How many runs at a time, each on one core.
        advance: Told of the steps each finished run was to take.
    """
    candidates = [cell for cell in cells() if trainable(cell)]
    with _workers(jobs) as pool:
        tuning = [replace(cell, lr=lr) for cell in candidates for lr in LEARNING_RATES]
        validated = _run_all(pool, tuning, advance)
        chosen = {cell: _best(cell, validated) for cell in candidates}
        final = {
            cell: [replace(chosen[cell], seed=TUNING_SEED + 1 + n, evaluate_on="test") for n in range(seeds)]
            for cell in candidates
        }
        tested = _run_all(pool, [run for runs in final.values() for run in runs], advance)
    results = []
    for cell in cells():
        lr = chosen[cell].lr if cell in chosen else None
        accuracies = tuple(_accuracy(tested[run]) for run in final.get(cell, []))
        edge = lr in (min(LEARNING_RATES), max(LEARNING_RATES))
        assert cell.batch_size is not None and cell.epochs is not None
        results.append(Cell(cell.network, cell.batch_size, cell.epochs, cell.method, lr, edge, accuracies))
    return results


def run_one(settings: Settings) -> Evaluated | None:
    """Train once; the final evaluation, or None if the run diverged."""
    method = settings.parsed_method
    resolved = settings.resolved(recipe(settings.network, settings.data, method, settings.batch_size))
    ending = Run(Session(resolved, torch.device("cpu"))).train()
    return ending.evaluations[-1] if ending.verdict == "finished" else None


def _accuracy(outcome: Evaluated | None) -> float:
    return 0.0 if outcome is None or outcome.accuracy is None else outcome.accuracy


def _best(cell: Settings, outcomes: Outcomes) -> Settings:
    """The candidate with the highest validation accuracy; among equals the one with the lowest loss."""

    def quality(settings: Settings) -> tuple[float, float]:
        outcome = outcomes[settings]
        return (-1.0, 0.0) if outcome is None else (_accuracy(outcome), -outcome.loss)

    return max((replace(cell, lr=lr) for lr in LEARNING_RATES), key=quality)


def _run_all(pool: ProcessPoolExecutor, runs: Sequence[Settings], advance: Advance) -> Outcomes:
    """All runs, the longest first, so that no core waits for another at the end."""
    started = {pool.submit(run_one, settings): settings for settings in sorted(runs, key=_work, reverse=True)}
    outcomes: Outcomes = {}
    for future in as_completed(started):
        outcomes[started[future]] = future.result()
        advance(_work(started[future]))
    return outcomes


def _work(cell: Settings) -> float:
    assert cell.batch_size is not None and cell.epochs is not None
    return cell.epochs * (TRAINING // cell.batch_size)


@contextmanager
def _workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes of one thread each. An interruption is the main process's to handle: theirs is switched off."""
    pool = ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=torch.set_num_threads,
        initargs=(1,),
    )
    try:
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # new processes inherit that
        try:
            for _ in range(jobs):
                pool.submit(int)  # starts one each
        finally:
            signal.signal(signal.SIGINT, handler)
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
