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

from trimtab.data import digits
from trimtab.networks import NETWORKS
from trimtab.records import Cell
from trimtab.training.loop import Method, Outcome, Settings, run

# Passes over the 1000 training images: enough steps at each batch size to tell the methods apart.
EPOCHS = {64: 10, 4: 2, 2: 1, 1: 1}
METHODS: tuple[Method, ...] = ("vanilla", "bn", "ln", "bnp")
LEARNING_RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
TUNING_SEED = 0

Advance = Callable[[float], None]


def cells() -> list[Settings]:
    """What is compared, each with a learning rate and a seed still to be set."""
    grid = product(NETWORKS, EPOCHS.items(), METHODS)
    return [Settings(network, method, size, epochs, 0.0, TUNING_SEED) for network, (size, epochs), method in grid]


def amount_of_work(seeds: int) -> float:
    """All the steps to be taken, the unit in which progress is told."""
    return sum(_work(cell) * (len(LEARNING_RATES) + seeds) for cell in cells() if cell.trainable())


def compare(seeds: int, jobs: int, advance: Advance) -> list[Cell]:
    """Choose the learning rates, train and test.

    Args:
        seeds: How many runs at the chosen learning rate.
        jobs: How many runs at a time, each on one core.
        advance: Told of the steps each finished run was to take.
    """
    trainable = [cell for cell in cells() if cell.trainable()]
    with _workers(jobs) as pool:
        tuning = [replace(cell, lr=lr) for cell in trainable for lr in LEARNING_RATES]
        validation = _run_all(pool, tuning, "validation", advance)
        chosen = {cell: _best(cell, validation) for cell in trainable}
        final = [replace(chosen[cell], seed=TUNING_SEED + 1 + seed) for cell in trainable for seed in range(seeds)]
        tested = _run_all(pool, final, "test", advance)
    results = []
    for cell in cells():
        lr = chosen[cell].lr if cell in chosen else None
        accuracies = [o.accuracy for s, o in tested.items() if replace(s, lr=0.0, seed=TUNING_SEED) == cell]
        edge = lr in (min(LEARNING_RATES), max(LEARNING_RATES))
        results.append(Cell(cell.network, cell.batch_size, cell.epochs, cell.method, lr, edge, tuple(accuracies)))
    return results


def _best(cell: Settings, outcomes: dict[Settings, Outcome]) -> Settings:
    """The candidate with the highest validation accuracy; among equals the one with the lowest loss."""
    candidates = [replace(cell, lr=lr) for lr in LEARNING_RATES]
    return max(candidates, key=lambda settings: (outcomes[settings].accuracy, -outcomes[settings].loss))


def _run_all(
    pool: ProcessPoolExecutor, runs: Sequence[Settings], part: str, advance: Advance
) -> dict[Settings, Outcome]:
    """All runs, the longest first, so that no core waits for another at the end."""
    started = {pool.submit(_run_one, s, part): s for s in sorted(runs, key=_work, reverse=True)}
    outcomes: dict[Settings, Outcome] = {}
    for future in as_completed(started):
        outcomes[started[future]] = future.result()
        advance(_work(started[future]))
    return {settings: outcomes[settings] for settings in runs}


def _run_one(settings: Settings, part: str) -> Outcome:
    data = digits()
    return run(settings, data["train"], data[part])


def _work(settings: Settings) -> float:
    return settings.epochs * (len(digits()["train"]) // settings.batch_size)


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
