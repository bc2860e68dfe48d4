"""What BNP adds to a step against depth and width: measured and drawn for benchmarks/speed.py."""

import math
import statistics
from pathlib import Path
from typing import Any

import torch
from speed_cases import RATE, Training, alternate, rounded, spread
from torch import nn

import trimtab
from trimtab.records import memory

BATCH = 32
DEPTHS = (10, 20, 50, 100, 200, 500, 1000)
WIDTHS = (100, 200, 500, 1000, 2000, 5000, 10_000)
DEPTH_WIDTH, WIDTH_DEPTH = 100, 2
# The upper range, of which the exponent is told.
DEPTH_FROM, WIDTH_FROM = 100, 1000
FLOOR = 0.5  # seconds for a point, at least


def network(depth: int, width: int, device: str) -> nn.Sequential:
    """Square layers and an output, without activations; deep ones orthogonal, so that no number becomes too small."""
    deep = depth > WIDTH_DEPTH
    with torch.device("cpu" if deep else device):
        layers = [nn.Linear(width, width) for _ in range(depth)]
        output = nn.Linear(width, 10)
    if deep:
        for layer in layers:
            nn.init.orthogonal_(layer.weight)
    return nn.Sequential(*layers, output).to(device)


def contenders(depth: int, width: int, device: str, precision: str) -> dict[str, Training]:
    """The same network without and with BNP."""
    needed = 2 * 3 * 4 * depth * width**2  # two networks, each with weights, gradients and as much again
    if device == "cpu" and needed > 0.7 * memory():
        raise MemoryError(f"this would take {needed / 1e9:.1f} GB")
    batch = torch.rand(BATCH, width, device=device), torch.randint(10, (BATCH,), device=device)
    found = {}
    for name in ("vanilla", "BNP"):
        torch.manual_seed(0)
        model = network(depth, width, device)
        optimizer = torch.optim.SGD(model.parameters(), RATE * 1e-3)
        if name == "BNP":
            trimtab.BNP(model).attach(optimizer)
        found[name] = Training(model, optimizer, [batch], precision)
    return found


def point(depth: int, width: int, seconds: float, device: str, precision: str) -> dict[str, Any]:
    """One network: milliseconds per step, those that BNP adds, and the number of weights in square layers."""
    times = alternate(contenders(depth, width, device, precision), max(seconds, FLOOR), device)
    added = [1000 * (b - a) for a, b in zip(times["vanilla"], times["BNP"], strict=True)]
    return {
        "depth": depth,
        "width": width,
        "weights": depth * width**2,
        "rounds": len(added),
        "vanilla_ms": rounded(1000 * statistics.median(times["vanilla"])),
        "added_ms": spread(added),
    }


def exponent(xs: list[float], ys: list[float]) -> float | None:
    """The slope of log y over log x by least squares; None for fewer than two points, or a y without a logarithm."""
    if len(xs) < 2 or min(ys) <= 0:
        return None
    return rounded(statistics.linear_regression([*map(math.log, xs)], [*map(math.log, ys)]).slope)


def exponents(by_depth: list[dict[str, Any]], by_width: list[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Those of the upper range, for the added time and for the vanilla step."""
    upper = {
        "depth": [point for point in by_depth if point["depth"] >= DEPTH_FROM],
        "weights": [point for point in by_width if point["width"] >= WIDTH_FROM],
    }
    return {
        "added": {
            over: exponent([p[over] for p in points], [p["added_ms"]["value"] for p in points])
            for over, points in upper.items()
        },
        "vanilla": {
            over: exponent([p[over] for p in points], [p["vanilla_ms"] for p in points])
            for over, points in upper.items()
        },
    }


def draw(path: Path, machines: list[dict[str, Any]]) -> None:
    """One row of panels for each machine: added time over depth, and over the number of weights."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    size = (10, 4.1 * len(machines))
    figure, rows = plt.subplots(len(machines), 2, figsize=size, layout="constrained", squeeze=False)
    for (left, right), machine in zip(rows, machines, strict=True):
        group = machine["groups"]["scaling"]
        title = f"{machine['machine']}\n"
        _panel(left, group["depth"], "depth", f"from {DEPTH_FROM} layers", group["exponents"])
        left.set(xlabel="layers", title=f"{title}layers {DEPTH_WIDTH}→{DEPTH_WIDTH}, batch {BATCH}")
        _panel(right, group["width"], "weights", f"from {WIDTH_FROM} units", group["exponents"])
        right.set(xlabel="weights (2n²)", title=f"{title}{WIDTH_DEPTH} layers n→n, batch {BATCH}")
        units = right.secondary_xaxis(-0.2, functions=(_units, _weights))
        units.set_xlabel("units n")
    figure.savefig(path, dpi=90)
    plt.close(figure)


def _units(weights: Any) -> Any:
    return (weights / WIDTH_DEPTH) ** 0.5


def _weights(units: Any) -> Any:
    return WIDTH_DEPTH * units**2


def _panel(axes: Any, points: list[dict[str, Any]], over: str, start: str, slopes: dict[str, Any]) -> None:
    """Vanilla step, what BNP adds with its quartiles, and a line of slope 1 through the last point."""

    def label(words: str, kind: str) -> str:
        slope = slopes[kind][over]
        return words if slope is None else f"{words}: exponent {slope:.2f} {start}"

    added = [point for point in points if point["added_ms"]["value"] > 0]  # the table has the others
    xs, values = [point[over] for point in added], [point["added_ms"]["value"] for point in added]
    bars = [  # not to below a tenth, where a logarithmic axis would show nothing else
        [value - max(point["added_ms"]["low"], value / 10) for value, point in zip(values, added, strict=True)],
        [point["added_ms"]["high"] - value for value, point in zip(values, added, strict=True)],
    ]
    axes.errorbar(xs, values, bars, c="#D55E00", marker="s", capsize=2, label=label("added by BNP", "added"))
    vanilla = [point["vanilla_ms"] for point in points]
    where = [point[over] for point in points]
    axes.plot(where, vanilla, c="#0072B2", marker="o", label=label("vanilla step", "vanilla"))
    if added:
        line = [values[-1] * x / xs[-1] for x in xs]
        axes.plot(xs, line, c="#555555", lw=0.9, ls="--", label="exponent 1", zorder=1)
    axes.set(xscale="log", yscale="log", ylabel="milliseconds per step")
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: ("added", "vanil", "expon").index(labels[i][:5]))
    axes.legend([handles[i] for i in order], [labels[i] for i in order], fontsize=8)
