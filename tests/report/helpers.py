"""Made-up records, the same every time."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.records import (
    EVENTS,
    Candidate,
    Cell,
    Comparison,
    Evaluated,
    EventLog,
    Metric,
    Probed,
    RunEnded,
    RunStarted,
    Trained,
    Trial,
    Verdict,
)

NASTY = """<script>alert(1)</script>&"'$x$"""
METHODS = ("vanilla", "bn", "ln", "bnp")
TEN = (*METHODS, "gn", "bnp+gn", "renorm", "bnp-debias+ln", "ghost", "noisy-bn")
LRS = (0.01, 0.03, 0.1, 0.3)
SKILL = {"vanilla": 0.82, "bn": 0.9, "ln": 0.88, "bnp": 0.93}


def settings(**told: Any) -> dict[str, Any]:
    usual = {"data": "digits", "network": "cnn5", "method": "bnp", "batch_size": 2, "epochs": 5, "steps": None}
    rest = {"seed": 0, "lr": 0.1, "optimizer": "sgd", "milestones": [3, 4], "augment": False, "log_every": 10}
    return {**usual, **rest, **told}


def write_run(
    folder: Path,
    told: dict[str, Any],
    *,
    skill: float = 0.9,
    steps: int = 1000,
    until: int | None = None,
    verdict: Verdict | None = "finished",
    regression: bool = False,
    scale: float = 1.0,
    part: str = "test",
    every: int = 10,
    speed: float = 0.01,
    defaults: tuple[str, ...] = (),
    probed: tuple[Probed, ...] = (),
) -> float:
    """A run that learns; returns its last value. `until`: where it stops; a verdict of None is a crash."""
    folder.mkdir(parents=True)
    noise = np.random.default_rng([int(told["seed"]), int(told["batch_size"]), len(str(told["method"])), steps])
    speed *= 1 + 0.1 * int(told["seed"])
    log = EventLog(folder / EVENTS)
    command = f"trimtab train --out {folder.name}"
    log.write(RunStarted(told, command, "a machine, 2 cores", {"torch": "2"}, 12345, defaults=list(defaults)))
    for event in probed:
        log.write(event)
    final = math.nan
    stop = until or steps
    for step in range(every, stop + 1, every):
        share = 1 - math.exp(-6 * step / steps)
        accuracy = 0.1 + (skill - 0.1) * share + 0.01 * float(noise.normal())
        loss = scale * (2.3 * (1 - share) + 2 * (1 - skill) + 0.02 * abs(float(noise.normal())))
        if verdict == "diverged" and step + every > stop:
            loss = math.nan if told["seed"] else math.inf
        seen = None if regression else min(accuracy, 1.0)
        log.write(Trained(step, step / 200, loss, seen, told["lr"], speed * step))
        if step % (steps // 20) == 0 and math.isfinite(loss):
            log.write(Evaluated(step, step / 200, part, 1.1 * loss, seen, speed * step))
            final = 1.1 * loss if regression else min(accuracy, 1.0)
    if verdict is not None:
        log.write(RunEnded(verdict, stop, speed * stop, 200.0))
    log.close()
    return final


@dataclass
class Plan:
    """A comparison to make up. `diverging`: network, batch size and method of cells whose first run diverges."""

    networks: tuple[str, ...] = ("cnn5", "mlp3x100")
    sizes: tuple[int, ...] = (64, 4, 2, 1)
    methods: tuple[str, ...] = METHODS
    seeds: int = 3
    lrs: tuple[float, ...] = LRS
    metric: Metric = "accuracy"
    data: str = "digits"
    command: str = "trimtab compare --methods vanilla,bn,ln,bnp"
    scale: float = 1.0
    diverging: tuple[tuple[str, int, str], ...] = ()
    cannot: tuple[tuple[str, int, str], ...] = ()
    open_cells: int = 0
    machine: str = "a machine, 2 cores"
    extra: dict[str, Any] = field(default_factory=dict)


def write_comparison(folder: Path, plan: Plan) -> Comparison:
    """The comparison's folder with all its runs."""
    folder.mkdir(parents=True, exist_ok=True)
    places = [(n, s, m) for n in plan.networks for s in plan.sizes for m in plan.methods]
    cells = []
    for number, (network, size, method) in enumerate(places):
        cell = Cell(network, size, method, None if size == 0 else 5, 1000 if size == 0 else None, "sgd")
        if (network, size, method) in plan.cannot:
            cell = replace(cell, why_not="normalizing needs two samples or more in a batch.")
        elif number < len(places) - plan.open_cells:
            cell = _filled(folder, plan, cell, number)
        cells.append(cell)
    comparison = Comparison(
        command=plan.command,
        data=plan.data,
        parts=(1000, 397, 400),
        metric=plan.metric,
        machine=plan.machine,
        versions={"trimtab": "0", "torch": "2", "python": "3"},
        side_by_side=2,
        seeds=plan.seeds,
        finished=not plan.open_cells,
        cells=tuple(cells),
    )
    comparison.write(folder)
    return comparison


def _filled(folder: Path, plan: Plan, cell: Cell, number: int) -> Cell:
    regression = plan.metric == "loss"
    skill = SKILL.get(cell.method, 0.6 + 0.03 * (len(cell.method) % 9)) + 0.01 * math.log2(max(cell.batch_size, 1))
    skill -= 0.03 * (cell.network == plan.networks[-1])
    told = {"data": plan.data, "network": cell.network, "method": cell.method, "batch_size": cell.batch_size}
    candidates = []
    for i, lr in enumerate(plan.lrs):
        bad = i == len(plan.lrs) - 1 and cell.method in ("vanilla", "bn")
        value = skill - 0.05 * abs(i - 2)
        loss = plan.scale * (1 - value)
        value = None if bad else loss if regression else value
        candidates.append(Candidate(lr, value, None if bad else loss, f"{number}-c{i}"))
    lr = plan.lrs[min(2, len(plan.lrs) - 1)]
    trials = []
    for seed in range(plan.seeds):
        name = f"{number}-s{seed}"
        diverges = seed == 0 and (cell.network, cell.batch_size, cell.method) in plan.diverging
        value = write_run(
            folder / "runs" / name,
            settings(**told, seed=seed, lr=lr, **plan.extra),
            skill=min(skill, 0.99),
            verdict="diverged" if diverges else "finished",
            until=430 if diverges else None,
            regression=regression,
            scale=plan.scale,
            speed=0.01 + 0.002 * (cell.method != "vanilla"),
        )
        value = (math.inf if regression else 0.1) if diverges else value
        trials.append(Trial(seed, value, diverges, name))
    return replace(cell, candidates=tuple(candidates) if len(plan.lrs) > 1 else (), lr=lr, trials=tuple(trials))
