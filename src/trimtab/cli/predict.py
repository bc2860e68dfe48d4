"""`trimtab predict`: the largest stable learning rate of a network, by mean field, and measured beside it."""

import argparse
import json
import math
import shutil
import sys
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from trimtab.cli.common import CommandError, add_data_root, positive

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trimtab.cli.parsing import Commands


Statistics = Literal["frozen", "batch"]
STATISTICS: tuple[Statistics, ...] = ("frozen", "batch")
OUTPUTS = ("one", "all")
NAMES: dict[Statistics, str] = {"frozen": "frozen statistics", "batch": "train mode"}
NAME, NUMBERS = 32, 10 + 11 + 8  # columns of the table of what was measured
LARGEST = 1e6  # of γ and the variances; the squares of more do not fit into single precision, in which is measured


@dataclass(frozen=True)
class Measured:
    """A measured eigenvalue and what is predicted for it.

    Attributes:
        statistics: `frozen` or `batch`.
        outputs: `one`, as mean field has it, or `all`.
        measured: The eigenvalue.
        predicted: Mean field's.
    """

    statistics: Statistics
    outputs: str
    measured: float
    predicted: float


def add(commands: "Commands") -> None:
    """Declare the command."""
    from trimtab.networks import NETWORKS
    from trimtab.norms import NORMS

    parser = commands.add_parser(
        "predict",
        help="the largest stable learning rate of a network, by mean field",
        description="Mean field's largest eigenvalue of the Fisher matrix of a network at the start of training, and "
        "the largest stable learning rate for the squared error.",
    )
    parser.add_argument("network", metavar="NETWORK", help=f"one of {', '.join(NETWORKS)}")
    parser.add_argument(
        "--norm", default="none", metavar="NAME", help=f"one of {', '.join(NORMS)} (default: %(default)s)"
    )
    parser.add_argument(
        "--gamma", type=_number, metavar="X", default=1.0, help="where each γ of the norm starts (default: %(default)s)"
    )
    parser.add_argument(
        "--sigma-w2",
        type=_number,
        metavar="X",
        default=2.0,
        help="weights' variance times fan-in, mf- networks (default: %(default)s)",
    )
    parser.add_argument(
        "--sigma-b2",
        type=_number,
        metavar="X",
        default=0.5,
        help="biases' variance, mf- networks (default: %(default)s)",
    )
    parser.add_argument(
        "--momentum", type=float, metavar="X", default=0.0, help="of the optimizer (default: %(default)s)"
    )
    parser.add_argument(
        "--statistics",
        type=_statistics,
        choices=STATISTICS,
        default="frozen",
        help="of BatchNorm (default: %(default)s)",
    )
    parser.add_argument(
        "--data", metavar="NAME", help="measure the inputs' moments on this data set (default: white noise is assumed)"
    )
    add_data_root(parser)
    parser.add_argument("--measure", action="store_true", help="measure the eigenvalue beside it")
    parser.add_argument(
        "--samples", type=positive, metavar="N", default=128, help="to measure on (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=_seed, metavar="N", default=0, help="of the weights and of the samples (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Predict, and measure if asked to."""
    import torch

    from trimtab.networks import input_shape
    from trimtab.theory.from_model import predict

    if options.samples < 2 and (options.measure or options.data):
        raise CommandError("--samples must be 2 or larger with --measure or --data: one sample has no statistics")
    torch.manual_seed(options.seed)
    inputs, shape, classes = _inputs(options)
    model = _network(options, shape, classes)
    shape = shape or input_shape(options.network)
    samples = options.samples if inputs is None else len(inputs)
    arguments: Any = {
        "momentum": options.momentum,
        "inputs": inputs,
        "samples": samples if options.measure else None,
    }
    prediction = predict(model, shape, statistics=options.statistics, **arguments)
    if not math.isfinite(prediction.upper_bound):
        raise CommandError("λ_max is not a finite number: --gamma, --sigma-w2 or --sigma-b2 are too large")
    measurements: list[Measured] = []
    missing: dict[Statistics, str] = {}
    if options.measure:
        x = torch.randn(samples, *shape) if inputs is None else inputs
        for name in STATISTICS:
            value = predict(model, shape, statistics=name, **arguments).lambda_max
            try:
                measurements += [
                    Measured(name, outputs, measured(model, x, name, outputs), value) for outputs in OUTPUTS
                ]
            except ValueError as error:  # not all norms have frozen statistics
                missing[name] = f"{NAMES[name]} not measured: {str(error).partition(';')[0].rstrip('.')}."
        if not measurements:
            raise CommandError(" ".join(missing.values()))
    if options.json:
        named = {"network": options.network, "norm": options.norm, "data": options.data, "seed": options.seed}
        more = {"measured": [asdict(one) for one in measurements], "not_measured": missing} if options.measure else {}
        print(json.dumps({**named, **prediction.to_dict(), **more}, indent=2))
    else:
        print(prediction)
        _print_measured(measurements, samples)
        for sentence in missing.values():
            print(sentence[0].upper() + sentence[1:])
    return 0


def _network(options: argparse.Namespace, shape: tuple[int, ...] | None, classes: int) -> "nn.Module":
    from trimtab.networks import build
    from trimtab.norms import Norm

    norm = Norm.parse(options.norm)
    if options.gamma != 1.0:
        norm = replace(norm, gamma=options.gamma)
    sigmas = {"sigma_w2": options.sigma_w2, "sigma_b2": options.sigma_b2}
    return build(options.network, norm, input_shape=shape, classes=classes, **sigmas)


def _inputs(options: argparse.Namespace) -> "tuple[Tensor | None, tuple[int, ...] | None, int]":
    """The first samples of the data set, standardized as for training, with their shape and the number of classes."""
    if options.data is None:
        return None, None, 10
    import torch

    from trimtab.data import DataError, ImageFolder, batches, load

    try:
        data = load(options.data, options.data_root)
    except DataError as error:
        raise ValueError(str(error)) from error
    if isinstance(data, ImageFolder):
        raise ValueError(f"--data {options.data} lies in files; take a data set that is read into memory.")
    count = min(options.samples, len(data.train))
    if count < options.samples:
        sentence = f"--samples {options.samples}: {options.data} has {count} to train on, and all are taken."
        print(f"trimtab: {sentence}", file=sys.stderr)
    chosen = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(options.seed))[:count]
    (batch,) = batches(data.train.take(chosen), count, dataset=data)
    return batch[0], data.input_shape, data.classes or data.train.targets.shape[1]


def measured(model: "nn.Module", x: "Tensor", statistics: Statistics, outputs: str) -> float:
    """The largest eigenvalue, of one output or of all.

    Raises:
        ValueError: If the norm has no such statistics, or numbers are too large.
    """
    import torch

    from trimtab.probes import CannotMeasure, fisher_lambda_max

    try:
        value = fisher_lambda_max(model, x, statistics=statistics, outputs=0 if outputs == "one" else "all")
    except (CannotMeasure, torch.linalg.LinAlgError):  # type: ignore[attr-defined]  # infinities among the products
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("the eigenvalue does not fit into single precision, lower --gamma or --sigma-w2")
    return value


def _print_measured(measurements: list[Measured], samples: int) -> None:
    if not measurements:
        return
    narrow = shutil.get_terminal_size().columns < NAME + NUMBERS
    print(f"\n{_row(f'λ_max on {samples} samples', ('measured', 'predicted', 'ratio'), narrow=narrow)}")
    for one in measurements:
        name = f"{NAMES[one.statistics]}, {one.outputs} output{'s' * (one.outputs == 'all')}"
        ratio = f"{one.predicted / one.measured:.3f}" if one.measured else "–"
        print(_row(name, (f"{one.measured:.4g}", f"{one.predicted:.4g}", ratio), narrow=narrow))


def _row(name: str, numbers: tuple[str, str, str], *, narrow: bool) -> str:
    """A row of the table; on a narrow terminal the numbers are below the name."""
    first, second, third = numbers
    return f"{name:<{0 if narrow else NAME}}{chr(10) * narrow}{first:>10}{second:>11}{third:>8}"


def _number(text: str) -> float:
    """A number that can be measured with, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not abs(number) <= LARGEST:
        raise argparse.ArgumentTypeError(f"must be a number of at most {LARGEST:,.0f} in size, not {text!r}")
    return number


def _statistics(text: str) -> str:
    """The word, for argparse; `train` is the former word for `batch`."""
    if text != "train":
        return text
    print("trimtab: --statistics train is now --statistics batch; the former word will go.", file=sys.stderr)
    return "batch"


def _seed(text: str) -> int:
    """A whole number that a generator takes, for argparse."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number < 2**63:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 2^63 - 1, not {text!r}")
    return number
