"""Mean field against random networks and against training: python benchmarks/meanfield.py [--picture FILE] (minutes).

Prints the tables of docs/meanfield.md and draws its picture. Training is on MNIST if it is there (TRIMTAB_DATA, or
data), and on the digits otherwise.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean, stdev

import torch
from torch import Tensor, nn

from trimtab.data import DataError, batches, load
from trimtab.networks import build
from trimtab.norms import Norm
from trimtab.probes import fisher_lambda_max
from trimtab.records import machine
from trimtab.theory.from_model import mean_field_prediction as predict
from trimtab.theory.mean_field import Conv, Dense, Layer, MaxPool, Pool, Residual, draw_network, mean_field

SIGMAS = {"sigma_w2": 2.0, "sigma_b2": 0.5}
MLP = [Dense(784, 1000), Dense(1000, 1000), Dense(1000, 1000), Dense(1000, 10)]
GAMMAS = (0.5, 1.0, 2.0, 3.0)


@dataclass(frozen=True)
class Case:
    """A network to draw.

    Attributes:
        kind: What the picture groups by.
        text: One line.
        layers: Its layers.
        shape: Of one input.
        gamma: BatchNorm's γ; None: no BatchNorm.
        samples: To measure on.
        draws: To take the mean over.
    """

    kind: str
    text: str
    layers: list[Layer]
    shape: tuple[int, ...]
    gamma: float | None
    samples: int
    draws: int


def dense_case(random: Random, depth: int) -> Case:
    """Widths of 500 to 1000, γ from 0.5 to 3."""
    widths = [random.randrange(500, 1001, 50) for _ in range(depth)]
    gamma = round(random.uniform(0.5, 3), 2)
    layers = [Dense(a, b) for a, b in zip(widths, [*widths[1:], 10], strict=True)]
    return Case("dense", f"dense {'-'.join(map(str, widths))}, γ {gamma}", list(layers), (widths[0],), gamma, 300, 8)


def conv_case(random: Random, padded: bool) -> Case:
    """Two or three convolutions of 100 to 200 channels with any kernel and stride."""
    size = start = random.choice((8, 10, 12) if padded else (12, 14, 16))
    channels, layers, words = 3, [], []
    for number in range(random.choice((2, 3))):
        kernel, stride, filters = (
            random.choice((3, 5) if size > 6 else (3,)),
            random.choice((1, 2)),
            random.randrange(100, 201, 20),
        )
        padding = kernel // 2 if padded else 0
        if (size + 2 * padding - kernel) // stride + 1 < 3:
            continue
        layers.append(Conv(channels, filters, kernel, stride, padding, size=size if number == 0 else None))
        words.append(f"{filters}k{kernel}s{stride}" + (f"p{padding}" if padding else ""))
        channels, size = filters, (size + 2 * padding - kernel) // stride + 1
    gamma = round(random.uniform(0.5, 3), 2)
    kind = "convolution, padded" if padded else "convolution"
    layers.append(Dense(channels * size * size, 10))
    return Case(kind, f"conv {start}×{start} {' '.join(words)}, γ {gamma}", layers, (3, start, start), gamma, 96, 8)


def cases() -> list[Case]:
    """All drawn networks."""
    random = Random(0)
    drawn = [dense_case(random, depth) for depth in (2, 3, 4, 5, 6, 7, 8)]
    drawn += [conv_case(random, padded) for padded in (False, True) for _ in range(6)]
    block = [Residual([Dense(500, 500)] * 2)]
    after = [Residual([Dense(500, 500)] * 2, preactivation=False)]
    begin, end, vector, image = [Dense(200, 500)], [Dense(500, 10)], (200,), (3, 8, 8)
    stem = Conv(3, 100, 3, 1, 1, size=8)
    wider = Residual([Conv(100, 200, 3, 2, 1), Conv(200, 200, 3, 1, 1)], Conv(100, 200, 1, 2))
    blocks = [stem, Residual([Conv(100, 100, 3, 1, 1)] * 2), wider, Pool(None), Dense(200, 10)]
    first, last = Conv(3, 150, 3, size=10), [Conv(150, 150, 3), Dense(600, 10)]
    same = Conv(100, 100, 3, 1, 1)
    small = [stem, MaxPool(2), same, MaxPool(2), same, Dense(400, 10)]
    strided = Conv(100, 100, 3, 2, 1)
    smaller = [stem, strided, strided, MaxPool(2), Dense(100, 10)]
    plain = [stem, strided, Dense(1600, 10)]
    wide = [*[Dense(500, 500)] * 3, Dense(500, 10)]
    return [
        *drawn,
        Case("residual", "preactivation, 3 blocks of 500", [*begin, *block * 3, *end], vector, 1.0, 300, 8),
        Case("residual", "preactivation, 6 blocks of 500", [*begin, *block * 6, *end], vector, 1.0, 300, 8),
        Case("residual", "ReLU after the sum, 3 blocks of 500", [*begin, *after * 3, *end], vector, 1.0, 300, 8),
        Case("residual", "padded convolutions, 2 blocks", blocks, image, 1.0, 300, 6),
        Case("pooling", "means over 2×2", [first, Pool(2), *last], (3, 10, 10), 1.0, 96, 8),
        Case("pooling", "largest of 2×2", [first, MaxPool(2), *last], (3, 10, 10), 1.0, 96, 8),
        Case("pooling", "largest of 2×2, padded, down to 2×2", small, image, 1.0, 96, 8),
        Case("pooling", "largest of 2×2, padded, down to 1×1", smaller, image, 1.0, 96, 8),
        Case("no normalization", "dense 500-500-500", wide, (500,), None, 300, 20),
        Case("no normalization", "padded convolutions", plain, image, None, 96, 20),
    ]


def measure(case: Case) -> tuple[float, float]:
    """The mean over draws, and their deviation as a share of it."""
    values = []
    for draw in range(case.draws):
        torch.manual_seed(draw)
        network = draw_network(case.layers, gamma=case.gamma, **SIGMAS)
        x = torch.randn(case.samples, *case.shape)
        values.append(fisher_lambda_max(network, x, outputs=0, tolerance=1e-3))
    return fmean(values), stdev(values) / fmean(values)


@dataclass(frozen=True)
class Row:
    """One drawn network.

    Attributes:
        case: What it is.
        found: λ_max as measured, the mean over draws.
        spread: The draws' deviation, as a share of it.
        exact: What the exact variant says.
        paper: What the paper's says; NaN where it has no formula.
    """

    case: Case
    found: float
    spread: float
    exact: float
    paper: float


def sweep() -> list[Row]:
    """Each case, measured and predicted."""
    print("\nDrawn networks: predicted / measured, frozen statistics, one output")
    print(f"{'':<58}{'measured':>10}{'spread':>8}{'exact':>8}{'paper':>8}")
    rows = []
    for case in cases():
        found, spread = measure(case)
        told = {"norm": None if case.gamma is None else "batch", "gamma": case.gamma or 1.0, "bias_terms": True}
        exact = mean_field(case.layers, samples=case.samples, **told, **SIGMAS).lambda_max  # type: ignore[arg-type]
        try:
            paper = mean_field(case.layers, samples=case.samples, variant="paper", **told, **SIGMAS).lambda_max  # type: ignore[arg-type]
        except ValueError:
            paper = math.nan
        rows.append(Row(case, found, spread, exact, paper))
        beside = f"{paper / found:8.2f}" if math.isfinite(paper) else f"{'–':>8}"
        print(f"{case.text:<58}{found:>10.4g}{spread:>8.0%}{exact / found:>8.3f}{beside}", flush=True)
    return rows


def table() -> dict[str, list[float]]:
    """λ_max over γ for the paper's fully connected network, in train mode too."""
    print("\n784-1000-1000-1000-10 on 1000 samples of white noise, one draw, one output")
    print(f"{'γ':>5}{'frozen':>10}{'exact':>10}{'weights':>10}{'paper':>10}{'train':>10}{'exact':>10}{'all ten':>10}")
    columns: dict[str, list[float]] = {name: [] for name in ("frozen", "exact", "paper", "train", "exact train")}
    torch.manual_seed(0)
    x = torch.randn(1000, 784)
    for gamma in GAMMAS:
        network = draw_network(MLP, gamma=gamma, **SIGMAS)
        told = {"norm": "batch", "gamma": gamma, **SIGMAS}
        row = {
            "frozen": fisher_lambda_max(network, x, outputs=0),
            "exact": mean_field(MLP, bias_terms=True, samples=1000, **told).lambda_max,  # type: ignore[arg-type]
            "weights": mean_field(MLP, **told).lambda_max,  # type: ignore[arg-type]
            "paper": mean_field(MLP, variant="paper", **told).lambda_max,  # type: ignore[arg-type]
            "train": fisher_lambda_max(network, x, outputs=0, statistics="batch"),
            "exact train": mean_field(MLP, bias_terms=True, samples=1000, statistics="batch", **told).lambda_max,  # type: ignore[arg-type]
            "all": fisher_lambda_max(network, x),
        }
        print(f"{gamma:>5g}" + "".join(f"{value:>10.1f}" for value in row.values()), flush=True)
        for name, column in columns.items():
            column.append(row[name])
    return columns


def data() -> tuple[str, Tensor, Tensor]:
    """512 standardized training samples and their classes as one of ten."""
    try:
        dataset = load("mnist")
    except DataError:
        dataset = load("digits")
    chosen = torch.randperm(len(dataset.train), generator=torch.Generator().manual_seed(0))[:512]
    ((x, classes),) = batches(dataset.train.take(chosen), 512, dataset=dataset)
    return dataset.name, x.float(), nn.functional.one_hot(classes, 10).float()


def losses(network: nn.Module, x: Tensor, y: Tensor, lr: float, steps: int) -> list[float]:
    """The loss before each step of gradient descent on the whole batch in train mode, until it is out of all bounds."""
    optimizer = torch.optim.SGD(network.parameters(), lr)
    found: list[float] = []
    for _ in range(steps):
        loss = (network(x) - y).square().sum(1).mean() / 2
        found.append(float(loss.detach()))
        if not found[-1] < 1e4 * found[0]:
            return [*found, math.inf]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return found


def largest_rate(start: float, fine: Callable[[float], bool]) -> float:
    """The largest learning rate that is fine, to 9 %, above one that is."""
    low = high = start
    while fine(high):
        low, high = high, 2 * high
    for _ in range(3):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fine(middle) else (low, middle)
    return math.sqrt(low * high)


@dataclass(frozen=True)
class Rates:
    """Learning rates for one γ.

    Attributes:
        gamma: The γ.
        frozen: η* with frozen statistics.
        train: η* in train mode.
        measured: 2/λ as measured in train mode, all outputs.
        rises: Above it the loss goes above its first value in the first ten steps.
        diverges: Above it the loss is above its first value after thirty steps.
    """

    gamma: float
    frozen: float
    train: float
    measured: float
    rises: float
    diverges: float


def limits() -> list[Rates]:
    """Predicted rates, and those at which training really fails."""
    name, x, y = data()
    shape = tuple(x.shape[1:])
    print(f"\nmf-mlp, BatchNorm, 512 samples of {name}, ½‖f − y‖², gradient descent on all of them, train mode")
    heads = ("η* frozen", "η* train", "2/λ measured", "loss rises", "diverges", "÷ η* frozen", "÷ η* train")
    print(f"{'γ':>5}" + "".join(f"{head:>14}" for head in heads))
    rows = []
    for gamma in GAMMAS[:3]:

        def network(gamma: float = gamma) -> nn.Module:
            torch.manual_seed(0)
            return build("mf-mlp", Norm("bn", gamma=gamma), input_shape=shape)

        def falls(lr: float, network: Callable[[], nn.Module] = network) -> bool:
            found = losses(network(), x, y, lr, 10)
            return max(found) <= found[0]

        def converges(lr: float, network: Callable[[], nn.Module] = network) -> bool:
            found = losses(network(), x, y, lr, 30)
            return found[-1] < found[0]

        frozen = predict(network(), shape, inputs=x).max_learning_rate
        row = Rates(
            gamma,
            frozen,
            predict(network(), shape, inputs=x, statistics="batch").max_learning_rate,
            2 / fisher_lambda_max(network(), x, statistics="batch", tolerance=1e-3),
            largest_rate(0.5 * frozen, falls),
            largest_rate(2 * frozen, converges),
        )
        rows.append(row)
        shown = (*list(vars(row).values())[1:], row.diverges / frozen, row.diverges / row.train)
        print(f"{gamma:>5g}" + "".join(f"{value:>14.3g}" for value in shown), flush=True)
    return rows


def draw(
    path: Path,
    rows: list[Row],
    columns: dict[str, list[float]],
    rates: list[Rates],
) -> None:
    """Three panels: drawn networks, λ over γ, learning rates over γ."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.9), layout="constrained")
    colours = ("#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7", "#000000")
    kinds = list(dict.fromkeys(row.case.kind for row in rows))
    left.axhspan(0.94, 1.06, color="#555555", alpha=0.15, lw=0)
    left.axhline(1.0, c="#555555", lw=0.8)
    for kind, colour, marker in zip(kinds, colours, "osD^vP", strict=True):
        here = [row for row in rows if row.case.kind == kind]
        ratios = [row.exact / row.found for row in here]
        bars = [ratio * row.spread / math.sqrt(row.case.draws) for ratio, row in zip(ratios, here, strict=True)]
        found = [row.found for row in here]
        left.errorbar(found, ratios, bars, c=colour, marker=marker, ls="none", ms=4.5, lw=0.8, label=kind, zorder=3)
    low, high = 0.78, 1.45
    beside = [(row.found, row.paper / row.found) for row in rows if math.isfinite(row.paper)]
    inside = [(x, y) for x, y in beside if low < y < high]
    left.scatter(*zip(*inside, strict=True), c="#999999", marker="x", s=22, label="the paper's variant", zorder=2)
    for edge, marker, outside in (
        (high - 0.012, 6, [x for x, y in beside if y >= high]),
        (low + 0.012, 7, [x for x, y in beside if y <= low]),
    ):
        left.scatter(outside, [edge] * len(outside), c="#999999", marker=marker, s=22, zorder=2)
    left.set(
        xscale="log",
        xlabel="λ_max measured",
        ylabel="predicted / measured",
        ylim=(low, high),
        title="drawn networks (band: ±6 %)",
    )
    left.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, 0.95))
    styles = {
        "frozen": ("#0072B2", "o", "", "measured, frozen statistics"),
        "exact": ("#0072B2", "", "-", "exact"),
        "paper": ("#E69F00", "", "--", "the paper's variant"),
        "train": ("#009E73", "s", "", "measured, train mode"),
        "exact train": ("#009E73", "", ":", "exact, train mode"),
    }
    for name, (colour, marker, line, label) in styles.items():
        middle.plot(GAMMAS, columns[name], c=colour, marker=marker or None, ls=line or "none", label=label)
    middle.set(xscale="log", yscale="log", xlabel="γ", ylabel="λ_max", title="784-1000-1000-1000-10, white noise")
    middle.set_xticks(GAMMAS, [f"{gamma:g}" for gamma in GAMMAS])
    middle.minorticks_off()
    middle.legend(fontsize=7)
    gammas = [row.gamma for row in rates]
    right.plot(gammas, [row.diverges for row in rates], c="#D55E00", marker="D", ls="none", label="training diverges")
    right.plot(
        gammas, [row.rises for row in rates], c="#E69F00", marker="^", ls="none", label="the loss rises at first"
    )
    right.plot(gammas, [row.train for row in rates], c="#009E73", ls=":", label="η*, train mode")
    right.plot(gammas, [row.frozen for row in rates], c="#0072B2", ls="-", label="η*, frozen statistics")
    right.set(
        xscale="log", yscale="log", xlabel="γ", ylabel="learning rate", title="mf-mlp on real data, squared error"
    )
    right.set_xticks(gammas, [f"{gamma:g}" for gamma in gammas])
    right.minorticks_off()
    right.legend(fontsize=7)
    figure.savefig(path, dpi=90)


def main() -> None:
    """Print everything, and draw it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path)
    picture = parser.parse_args().picture
    print(machine())
    columns = table()
    rates = limits()
    rows = sweep()
    if picture is not None:
        draw(picture, rows, columns, rates)


if __name__ == "__main__":
    main()
