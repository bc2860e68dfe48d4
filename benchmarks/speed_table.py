"""benchmarks/RESULTS.md and scaling.png from benchmarks/results/*.json: python benchmarks/speed_table.py (a second).

The JSON files are written by benchmarks/speed.py, one per machine and precision. What no file has is listed as not
measured. What is told in words is in benchmarks/notes.md, which becomes the end of the document.
"""

import argparse
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FC, CNN, RESNET = "FC net", "5-layer CNN", "ResNet-110"
MEMORY = (f"{FC}, batch 512, peak memory", f"{CNN}, batch 128, peak memory", f"{RESNET}, batch 128, peak memory")
TRAINING = "ResNet-110 on CIFAR-10, 160 epochs of trimtab train with BNP+GN, minutes"
DEPTH_COST, WIDTH_COST = "exponent of added time over layers", "exponent of added time over weights"

# For each kind of device what is to be reached: the measured number is to be at most this. That costs are linear is
# taken as an exponent of at most 1.1.
GOALS: dict[str, dict[str, float]] = {
    "cpu": {
        f"{FC}, batch 16: BNP ÷ BN": 1.0,
        f"{FC}, batch 256: BNP ÷ BN": 1.0,
        f"{FC}, batch 512: BNP ÷ BN": 1.0,
        f"{FC}, batch 16: plain BNP ÷ BN": 1.25,
        f"{FC}, batch 256: plain BNP ÷ BN": 1.15,
        f"{FC}, batch 512: plain BNP ÷ BN": 1.1,
        f"{CNN}, batch 128: BNP ÷ BN": 0.9,
        f"{FC}, batch 1: BNP ÷ vanilla": 1.3,
        f"{FC}, batch 2: BNP ÷ vanilla": 1.3,
        f"{MEMORY[0]}: BNP ÷ vanilla": 1.02,
        f"{MEMORY[1]}: BNP ÷ vanilla": 1.02,
        f"{MEMORY[2]}: BNP+GN ÷ GN": 1.02,
        DEPTH_COST: 1.1,
        WIDTH_COST: 1.1,
    },
    "cuda": {
        f"{FC}, batch 16: BNP ÷ BN": 1.0,
        f"{FC}, batch 256: BNP ÷ BN": 1.0,
        f"{FC}, batch 512: BNP ÷ BN": 1.0,
        f"{RESNET}, batch 128, eager: BNP+GN ÷ GN": 1.1,
        f"{RESNET}, batch 128, captured: BNP+GN ÷ GN": 1.1,
        TRAINING: 12.0,
        f"{MEMORY[0]}: BNP ÷ vanilla": 1.02,
        f"{MEMORY[1]}: BNP ÷ vanilla": 1.02,
        f"{MEMORY[2]}: BNP+GN ÷ GN": 1.02,
        DEPTH_COST: 1.1,
        WIDTH_COST: 1.1,
    },
}

INTRODUCTION = """\
# What BNP costs

Written by `python benchmarks/speed_table.py` from `benchmarks/results/`; only the end, from `benchmarks/notes.md`, is
written by hand. `make bench` measures anew.

A step is forward, backward and the optimizer's step (SGD, with the momentum and weight decay of the paper's recipes),
on random data of CIFAR-10's shape. Contenders take turns in one process, in short blocks of steps after a warm-up, and
the first three steps after another contender's are not timed (one, where steps are long); a ratio is the median, over
rounds, of the ratio within a round; in brackets are its quartiles. Those of the FC net are built six times, since it
matters where weights lie, and freed memory is kept, for the same reason. The FC net is 3072-100-100-10, that of the
paper's Table 1. "Plain" is `BNP(model, fast=False)`, in PyTorch only. Networks are those of `trimtab train`: with BNP
convolutions have biases. Peak memory is that of all tensors in a step, weights and one batch included. The minutes of
160 epochs are extrapolated: a run of 12 epochs, and 148 times an epoch as it is there from the third on, by the clock
on the wall, with starting, compiling, data, evaluations and checkpoints.
"""

SCALING = """\
## Cost against depth and width

Square layers without activations. The time that BNP adds is the median of the difference within a round. With width n
there are 2n² weights: work and memory of a step are proportional to that, with BNP as without it, and so the cost is to
be linear in the number of weights. Exponents are of the upper range; small layers cost their launches, not their size.

![Milliseconds that BNP adds to a step, over the number of layers and over the number of weights](scaling.png)
"""


def read(folder: Path) -> list[dict[str, Any]]:
    """All results, CPUs first. A machine's in another precision join those that it has, where these lack them."""
    machines: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        for known in machines:
            same = (known["device"], known["machine"]) == (found["device"], found["machine"])
            if same and not known["groups"].keys() & found["groups"].keys():
                known["groups"] |= found["groups"]
                break
        else:
            machines.append(found)
    return sorted(machines, key=lambda results: results["device"] != "cpu")


def document(machines: list[dict[str, Any]], notes: str) -> str:
    """The whole of it."""
    parts = [INTRODUCTION, *_goals(machines)]
    for results in machines:
        parts += [f"## {results['machine']}\n", *_settings(results), *_ratios(results), *_steps(results)]
    if any("scaling" in results["groups"] for results in machines):
        parts += [SCALING]
        for results in machines:
            parts += _scaling(results)
    return "\n".join([*parts, notes.strip(), ""])


def _goals(machines: list[dict[str, Any]]) -> list[str]:
    lines = ["## Goals\n"]
    for device, goals in GOALS.items():
        here = [results for results in machines if results["device"] == device]
        for results in here or [{"machine": f"{device}: not measured yet", "groups": {}}]:
            lines += [f"| {results['machine']} | goal | measured | met |", "|---|---|---|---|"]
            ratios = {ratio["name"]: ratio for group in results["groups"].values() for ratio in group["ratios"]}
            failed = {name: why for group in results["groups"].values() for name, why in group["failed"].items()}
            for name, goal in goals.items():
                if name in ratios:
                    met = "yes" if ratios[name]["value"] <= goal else f"no, {ratios[name]['value'] / goal - 1:+.0%}"
                    lines.append(f"| {name} | ≤ {goal:.2f} | {_told(ratios[name])} | {met} |")
                else:
                    lines.append(f"| {name} | ≤ {goal:.2f} | {failed.get(name, 'not measured')} | – |")
            lines.append("")
    return lines


def _settings(results: dict[str, Any]) -> list[str]:
    """What was run; several groups of cases in one line, where they were run alike."""
    ways: dict[tuple[str, str], list[str]] = {}
    for name, group in results["groups"].items():
        run = group["run"]
        threads = f"{run['threads']} {'thread' if run['threads'] == 1 else 'threads'}"
        told = f"torch {run['torch']}, {threads}, {run['precision']}; kernels: {run['kernels']}"
        ways.setdefault((told, run["options"]), []).append(name)
    command = f"python benchmarks/speed.py --device {results['device']}"
    return [
        *(f"- {told}: `{command} --only {','.join(names)}{options}`" for (told, options), names in ways.items()),
        "",
    ]


def _ratios(results: dict[str, Any]) -> list[str]:
    lines = ["| all ratios | median (quartiles) | rounds |", "|---|---|---|"]
    for group in results["groups"].values():
        lines += [f"| {ratio['name']} | {_told(ratio)} | {ratio.get('rounds', '')} |" for ratio in group["ratios"]]
        lines += [f"| {name} | {why} | |" for name, why in group["failed"].items()]
    return [*lines, ""]


def _steps(results: dict[str, Any]) -> list[str]:
    """Medians of each contender, a row for each case."""
    steps = [step for group in results["groups"].values() for step in group["steps"]]
    columns = list(dict.fromkeys(step["contender"] for step in steps))
    rows: dict[str, dict[str, str]] = {}
    for step in steps:
        row = rows.setdefault(f"{step['case']}, {step['unit']}", {})
        row[step["contender"]] = f"{step['value']:.4g}"
    lines = [f"| medians | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {case} | {' | '.join(row.get(column, '') for column in columns)} |" for case, row in rows.items()]
    return [*lines, ""] if steps else []


def _scaling(results: dict[str, Any]) -> list[str]:
    group = results["groups"].get("scaling")
    if group is None:
        return []
    lines = [f"{results['machine']}, batch {group['batch']}:\n"]
    lines += [
        "| layers | units | weights | vanilla step, ms | added by BNP, ms | rounds |",
        "|---|---|---|---|---|---|",
    ]
    for point in [*group["depth"], *group["width"]]:
        lines.append(
            f"| {point['depth']} | {point['width']} | {point['weights']:,} | {point['vanilla_ms']:.4g} "
            f"| {_told(point['added_ms'], '.4g')} | {point['rounds']} |"
        )
    told = []
    for over, words in group["ranges"].items():
        found = [group["exponents"][kind][over] for kind in ("added", "vanilla")]
        added, vanilla = ("none" if value is None else f"{value:.2f}" for value in found)
        told.append(f"{words}, {added} for the time added by BNP and {vanilla} for the vanilla step")
    return [*lines, "", f"Exponents, by least squares on logarithms: {'; '.join(told)}.", ""]


def _told(found: dict[str, Any], form: str = ".3f") -> str:
    """A median with its quartiles, where there are some."""
    told = format(found["value"], form)
    return f"{told} ({found['low']:{form}}–{found['high']:{form}})" if "low" in found else told


def write(results: Path = HERE / "results", to: Path = HERE / "RESULTS.md", *, picture: bool = True) -> None:
    """The document, and the picture beside it."""
    machines = read(results)
    to.write_text(document(machines, (HERE / "notes.md").read_text(encoding="utf-8")), encoding="utf-8")
    drawn = [one for one in machines if one["groups"].get("scaling", {}).get("depth")]
    if drawn and picture:
        from speed_scaling import draw

        draw(to.parent / "scaling.png", drawn)


def main() -> None:
    """Write them as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of JSON files")
    parser.add_argument("--to", type=Path, default=HERE / "RESULTS.md")
    parser.add_argument("--no-picture", action="store_true", help="leave scaling.png as it is")
    told = parser.parse_args()
    write(told.results, told.to, picture=not told.no_picture)


if __name__ == "__main__":
    main()
