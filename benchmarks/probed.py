"""What probes found along runs, in medians: python benchmarks/probed.py FOLDER... (of `trimtab probe`).

Prints tables, a row for each run and part of it.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from trimtab.records import History, Probed, find_runs, largest_smoothness, smoothness_by_multiple

PARTS = ((0.0, 0.25), (0.25, 0.5), (0.5, 1.0))


def of(run: History, probe: str, part: tuple[float, float]) -> list[Probed]:
    """A probe's results in a part of a run."""
    last = max(event.step for event in run.probed)
    inside = [event for event in run.probed if part[0] * last <= event.step <= part[1] * last]
    return [event for event in inside if event.probe == probe and not event.result["problem"]]


def middle(events: Sequence[Probed], number: Callable[[dict[str, Any]], float]) -> str:
    """The median, for a table."""
    return f"{median(number(event.result) for event in events):.3g}" if events else "–"


def landscape(runs: Sequence[History]) -> None:
    """Along the gradient."""
    print(
        "\n| run | steps | loss | largest loss along it | largest change of gradient | over its norm | β-smoothness | "
        "at an edge |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for run in runs:
        for part in PARTS:
            events = of(run, "landscape", part)
            if events:
                numbers = (
                    middle(events, lambda r: r["loss"]),
                    middle(events, lambda r: r["loss_range"][1]),
                    middle(events, lambda r: r["predictiveness_range"][1]),
                    middle(events, lambda r: r["predictiveness_range"][1] / r["gradient_norm"]),
                    middle(events, lambda r: r["smoothness"]),
                )
                steps = f"{events[0].step} to {events[-1].step}"
                edges = sum(at_edge(event.result) for event in events)
                of_all = f"{edges} of {len(events)}"
                print(f"| {run.started.settings['method']} | {steps} | {' | '.join(numbers)} | {of_all} |")
    by_multiple(runs)


def betas(result: dict[str, Any]) -> tuple[float, ...]:
    """β at each multiple, also of records that have only what it is made of."""
    return smoothness_by_multiple(result["gradient_changes"], result["distances"])


def at_edge(result: dict[str, Any]) -> bool:
    """Whether the largest β is at an edge of the range."""
    return largest_smoothness(result["multiples"], betas(result))[2]


def by_multiple(runs: Sequence[History]) -> None:
    """β at each multiple of the step, in the second half."""
    multiples = of(runs[0], "landscape", PARTS[-1])[0].result["multiples"]
    print(f"\n| run | β at {' | '.join(f'{s:g}' for s in multiples)} |")
    print(f"|---|{'---|' * len(multiples)}")
    for run in runs:
        events = of(run, "landscape", PARTS[-1])
        cells = [middle(events, lambda r, i=i: betas(r)[i]) for i in range(len(multiples))]
        print(f"| {run.started.settings['method']} | {' | '.join(cells)} |")


def shift(runs: Sequence[History]) -> None:
    """Internal covariate shift in the second half."""
    print("\n| run | layer: cosine, distance over the gradient's norm |")
    print("|---|---|")
    for run in runs:
        events = of(run, "shift", PARTS[-1])
        words = []
        for place, layer in enumerate(events[0].result["layers"] if events else []):
            cosine = middle(events, lambda r, place=place: r["layers"][place]["cosine"])
            away = middle(
                events, lambda r, place=place: r["layers"][place]["distance"] / r["layers"][place]["gradient_norm"]
            )
            words.append(f"{layer['layer']}: {cosine}, {away}")
        if words:
            print(f"| {run.started.settings['method']} | {'; '.join(words)} |")


def conditioning(runs: Sequence[History]) -> None:
    """Condition numbers of the last layer."""
    names = ("hessian", "preconditioned", "inputs", "normalized", "scaling")
    print("\n| run | steps | κ of the Hessian | preconditioned | κ(Ĥ) | κ(Ĝ) | κ(D) |")
    print("|---|---|---|---|---|---|---|")
    for run in runs:
        for part in PARTS:
            events = of(run, "conditioning", part)
            if events:
                last = list(events[0].result["layers"])[-1]
                numbers = [middle(events, lambda r, name=name, last=last: r["layers"][last][name]) for name in names]
                steps = f"{events[0].step} to {events[-1].step}"
                print(f"| {run.started.settings['method']} | {steps} | {' | '.join(numbers)} |")


def main() -> None:
    """One folder after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    for folder in parser.parse_args().folders:
        runs = [History.read(place) for place in find_runs([folder])]
        print(f"\n{folder.name}: {runs[0].started.machine}")
        for run in runs:
            last = run.evaluated[-1]
            value = f"loss {last.loss:.4g}" if last.accuracy is None else f"accuracy {100 * last.accuracy:.1f} %"
            print(f"{run.started.settings['method']}: {last.part} {value}")
        kinds = {event.probe for run in runs for event in run.probed}
        for kind, show in (("landscape", landscape), ("shift", shift), ("conditioning", conditioning)):
            if kind in kinds:
                show(runs)


if __name__ == "__main__":
    main()
