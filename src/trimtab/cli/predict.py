"""`trimtab predict`: the largest stable learning rate of a network, measured on data or predicted without."""

import argparse
import json
import math
import shutil
import sys
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING

from trimtab.cli.common import CommandError, add_data_root, positive

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trimtab.cli.parsing import Commands


STATISTICS = ("batch", "frozen")
LOSSES = ("squared", "cross_entropy")  # as in trimtab.prediction, which takes half a second to import
LARGEST = 1e6  # of γ and the variances; the squares of more do not fit into single precision, in which is measured


def add(commands: "Commands") -> None:
    """Declare the command."""
    from trimtab.networks import ACTIVATIONS, NETWORKS
    from trimtab.norms import NORMS

    parser = commands.add_parser(
        "predict",
        help="the largest stable learning rate of a network at the start of training",
        description="The largest eigenvalue of the Gauss–Newton matrix of a network at the start of training, and the "
        "largest stable learning rate: measured if data are named, else predicted as the mean of random networks like "
        "it. Mean field's formulas stand beside.",
    )
    parser.add_argument("network", metavar="NETWORK", help=f"one of {', '.join(NETWORKS)}")
    parser.add_argument(
        "--norm", default="none", metavar="NAME", help=f"one of {', '.join(NORMS)} (default: %(default)s)"
    )
    parser.add_argument(
        "--gamma", type=_number, metavar="X", default=1.0, help="where each γ of the norm starts (default: %(default)s)"
    )
    parser.add_argument("--activation", metavar="NAME", help=f"one of {', '.join(ACTIVATIONS)} (default: relu)")
    parser.add_argument(
        "--depth", type=positive, metavar="N", help="layers of deep-mlp, mf-mlp, small-mlp (default: 25, 4, 4)"
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
        "--loss", choices=LOSSES, help="that the rate is for (default: cross_entropy, or squared for regression)"
    )
    parser.add_argument(
        "--outputs", choices=("all", "one"), default="all", help="one: as in the paper, squared loss (default: all)"
    )
    parser.add_argument(
        "--statistics",
        type=_statistics,
        choices=STATISTICS,
        default="batch",
        help="of BatchNorm: the batch's as in training, or frozen as in the paper (default: %(default)s)",
    )
    parser.add_argument("--data", metavar="NAME", help="measure on this data set (default: white noise is assumed)")
    add_data_root(parser)
    parser.add_argument(
        "--measure",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="measure this network, on white noise if no data are named; or predict, also with data (default: measure "
        "if data are named)",
    )
    parser.add_argument(
        "--samples", type=positive, metavar="N", default=128, help="to measure on (default: %(default)s)"
    )
    parser.add_argument(
        "--batch-size", type=positive, metavar="N", help="samples that share BatchNorm's statistics (default: all)"
    )
    parser.add_argument(
        "--seed", type=_seed, metavar="N", default=0, help="of the weights and of the samples (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure, or predict."""
    import torch

    from trimtab.networks import input_shape
    from trimtab.prediction import predict
    from trimtab.probes import CannotMeasure

    if options.samples < 2 and (options.measure or options.data):
        raise CommandError("--samples must be 2 or larger with --measure or --data: one sample has no statistics")
    torch.manual_seed(options.seed)
    inputs, size, shape, classes, classifies = _inputs(options)
    model = _network(options, shape, classes)
    shape = shape or input_shape(options.network)
    drawn = inputs is None and options.measure
    try:
        prediction = predict(
            model,
            shape,
            loss=options.loss or ("cross_entropy" if classifies else "squared"),
            outputs=options.outputs,
            statistics=options.statistics,
            inputs=torch.randn(options.samples, *shape) if drawn else inputs,
            samples=size,
            batch_size=options.batch_size,
            momentum=options.momentum,
            measure=options.measure,
        )
        if not math.isfinite(prediction.lambda_max):
            raise CannotMeasure("λ_max is not finite.")
    except (CannotMeasure, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
        raise CommandError(
            "λ_max does not fit into single precision: --gamma, --sigma-w2 or --sigma-b2 are too large"
        ) from error
    if drawn:
        note = "The inputs were white noise; --data names a data set to measure on."
        prediction = replace(prediction, notes=(*prediction.notes, note))
    if options.json:
        named = {"network": options.network, "norm": options.norm, "data": options.data, "seed": options.seed}
        print(json.dumps({**named, **prediction.to_dict()}, indent=2))
    else:
        width = shutil.get_terminal_size().columns
        for line in str(prediction).splitlines():
            print(textwrap.fill(line, width, subsequent_indent="    ", replace_whitespace=False) if line else line)
    return 0


def _network(options: argparse.Namespace, shape: tuple[int, ...] | None, classes: int) -> "nn.Module":
    from trimtab.networks import build
    from trimtab.norms import Norm

    norm = Norm.parse(options.norm)
    if options.gamma != 1.0:
        norm = replace(norm, gamma=options.gamma)
    sigmas = {"sigma_w2": options.sigma_w2, "sigma_b2": options.sigma_b2}
    kind = {"activation": options.activation, "depth": options.depth}
    return build(options.network, norm, input_shape=shape, classes=classes, **sigmas, **kind)


def _inputs(options: argparse.Namespace) -> "tuple[Tensor | None, int | None, tuple[int, ...] | None, int, bool]":
    """Some samples of the data set, standardized as for training, its size, their shape, and the outputs to have.

    The last entry is whether these are classes; without data they are, unless one output is asked for.
    """
    if options.data is None:
        return None, None, None, 10, options.outputs == "all"
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
    outputs = data.classes or data.train.targets.shape[1]
    classifies = data.classes is not None and options.outputs == "all"
    return batch[0], len(data.train), data.input_shape, outputs, classifies


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
