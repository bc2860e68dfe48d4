"""What the doctor costs: python benchmarks/doctor_cost.py [--rounds N] [--device cuda] [--busy].

ResNet-18 on random images of 3 × 16 × 16 in batches of 32, and a transformer of two layers on random sequences of 64
tokens in batches of 16, with SGD. A look and a tried step are rare, so each is measured where it is frequent and spread
by calculation over the steps between two of them: blocks of plain steps, blocks in which each step is looked at (every
eighth of them with activations, as in a long training), and blocks in which every second step is also tried, with the
way since an earlier one, alternate in one process. The probes of level standard are called by themselves. Printed is
the median over rounds, and their range, for the first steps of a training, with two looks for each trial, and for the
rest of a long one, with one.

Beside it, for ResNet-18, where the package cockpit-for-pytorch is there: its economy tier, in every step as its default
is, and spread over the steps between two trials of level standard. It knows no gradients of single samples in LayerNorm
and attention, so that the transformer is left out.

On a machine that is busy with other things, --busy counts the processor time of one thread in the place of the time
that passes.
"""

import argparse
import copy
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from trimtab import Doctor
from trimtab.doctor import doctor as doctor_module
from trimtab.doctor.probing import probe_model
from trimtab.doctor.schedule import LOOK_EVERY, OFTEN, PROBES, TRY_EVERY, Schedule
from trimtab.networks import build
from trimtab.records import machine

STEPS = 32
COCKPIT_STEPS = 2
VOCABULARY = 1000


class Transformer(nn.Module):
    """Two layers that predict a token from each place."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits for each place, the classes in dimension 1."""
        out: Tensor = self.head(self.layers(self.embedding(tokens)))
        return out.transpose(1, 2)


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def cases(device: str) -> dict[str, tuple[nn.Module, Callable[[], tuple[Tensor, Tensor]]]]:
    """The networks, and what makes a batch for each."""
    images = lambda: (torch.randn(32, 3, 16, 16, device=device), torch.randint(10, (32,), device=device))  # noqa: E731
    words = lambda: torch.randint(VOCABULARY, (16, 64), device=device)  # noqa: E731
    return {
        "ResNet-18": (build("resnet18", "bn", input_shape=(3, 16, 16)).to(device), images),
        "transformer": (Transformer().to(device), lambda: (words(), words())),
    }


def block(model: nn.Module, make: Callable[[], Any], level: Any, clock: Callable[[], float]) -> float:
    """The time of some steps, each looked at, and at level standard every second one tried; without a level plain.

    No probe is called.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = [make() for _ in range(STEPS + 1)]
    doctor = None if level is None else Doctor(model, optimizer, loss_fn, level=level, every=2)
    start = 0.0
    for number, batch in enumerate(batches):
        if number == 1:  # the first step is not counted: the optimizer and the doctor begin
            start = _now(model, clock)
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()
        if doctor is not None:
            doctor.step(batch, loss)
        optimizer.step()
    taken = _now(model, clock) - start
    if doctor is not None:
        assert not doctor.record.problems, doctor.record.problems
        doctor.close()
    return taken


def probes(model: nn.Module, make: Callable[[], Any], clock: Callable[[], float]) -> float:
    """The time of the probes of level standard in as many steps as there are between two trials."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    taken = 0.0
    for name, (_, every) in PROBES.items():
        batch = make()
        start = _now(model, clock)
        found = probe_model(name, model, optimizer, loss_fn, batch, "standard")
        taken += (_now(model, clock) - start) / every
        assert found.problem is None, found.problem
    return taken


def has_cockpit() -> bool:
    """Whether cockpit is there."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import cockpit  # noqa: F401
    except ImportError:
        return False
    return True


def cockpit_step(model: nn.Module, make: Callable[[], Any], clock: Callable[[], float]) -> float:
    """The time of a step that cockpit's economy tier tracks, the forward for its losses of samples included."""
    from backpack import extend
    from cockpit import Cockpit
    from cockpit.utils.configuration import configuration

    extended = extend(copy.deepcopy(model))
    mean, each = extend(nn.CrossEntropyLoss()), nn.CrossEntropyLoss(reduction="none")
    tracked = Cockpit(extended.parameters(), quantities=configuration("economy"))
    optimizer = torch.optim.SGD(extended.parameters(), lr=0.01)
    start = 0.0
    for number in range(COCKPIT_STEPS + 1):
        if number == 1:  # as in `block`
            start = _now(extended, clock)
        x, classes = make()
        optimizer.zero_grad()
        out = extended(x)
        loss = mean(out, classes)
        losses = each(out, classes)
        seen = {"batch_size": len(classes), "individual_losses": losses, "loss": loss, "optimizer": optimizer}
        with tracked(number, info=seen):
            loss.backward(create_graph=tracked.create_graph(number))
        optimizer.step()
    return (_now(extended, clock) - start) / COCKPIT_STEPS


def _now(model: nn.Module, clock: Callable[[], float]) -> float:
    if next(model.parameters()).device.type == "cuda":
        torch.cuda.synchronize()
    return clock()


def main() -> None:
    """Print the ratios to the plain loop."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--busy", action="store_true", help="processor time of one thread")
    told = parser.parse_args()
    name = torch.cuda.get_device_name() if told.device == "cuda" else machine()
    print(f"{told.rounds} rounds of blocks of {STEPS} steps: {name}.")
    if told.busy:
        torch.set_num_threads(1)
    clock = time.process_time if told.busy else time.perf_counter
    torch.manual_seed(0)
    doctor_module.WAY = 2  # blocks are short
    Schedule.probes = lambda self, trials: ()  # they are measured by themselves
    for case, (model, make) in cases(told.device).items():
        block(model, make, "standard", clock)  # so that all is loaded and allocated
        probes(model, make, clock)
        beside = case == "ResNet-18" and has_cockpit()
        looks, trials, other = [], [], []
        for _ in range(told.rounds):
            plain, looked, tried = (block(model, make, level, clock) for level in (None, "light", "standard"))
            looks.append((looked - plain) / plain)  # in steps
            trials.append(((tried - looked) / (STEPS / 2) + probes(model, make, clock)) * STEPS / plain)
            if beside:
                with warnings.catch_warnings():  # of gradients of samples that BatchNorm mixes
                    warnings.simplefilter("ignore")
                    other.append(cockpit_step(model, make, clock) * STEPS / plain)
        ratios: dict[str, list[float]] = {}
        for when, every in ((f"in its first {OFTEN:,} steps", LOOK_EVERY), ("after that", TRY_EVERY)):
            ratios[f"light, {when}"] = [1 + look / every for look in looks]
            ratios[f"standard, {when}"] = [
                1 + look / every + trial / TRY_EVERY for look, trial in zip(looks, trials, strict=True)
            ]
        ratios["cockpit economy, in every step"] = other
        ratios[f"cockpit economy, in every {TRY_EVERY}th step"] = [1 + (ratio - 1) / TRY_EVERY for ratio in other]
        for level, found in ratios.items():
            if not found:
                continue
            print(
                f"{case:>12}, {level}: {median(found):.3f} × the plain loop ({min(found):.3f} to {max(found):.3f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
