"""bnp, Sec. 4: what statistics of each site of the kernels would cost, in the place of those of channels."""

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch
import torch.nn.functional as F

import trimtab
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.networks import build, input_shape

NETWORK, BATCH = "cnn5", 128
ROUNDS, STEPS = 20, 3


@experiment("bnp-site-time", "bnp: statistics by site or by channel, timed", small=0.2, gpu=1)
def site_time(findings: Findings, context: Context) -> None:
    """Steps of the 5-layer CNN with BNP by site and by channel, in turns; the time of a round is that of its steps."""
    kinds = {kind: stepper(kind, context.device) for kind in ("site", "channel")}
    times = alternated(kinds, lambda: settle(context.device), ROUNDS, STEPS)
    for kind, each in times.items():
        for number, seconds in enumerate(each):
            findings.number("time of a step", kind, seconds, seed=number, unit="time")
    ratios = [a / b for a, b in zip(times["site"], times["channel"], strict=True)]
    findings.notes.append(
        f"In the median of {ROUNDS} rounds a step with statistics by site takes {median(ratios):.3g} times as long."
    )
    findings.settings |= {"network": NETWORK, "batch_size": BATCH, "rounds": ROUNDS, "steps a round": STEPS}


def settle(device: torch.device) -> None:
    """Wait until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def stepper(spatial: str, device: torch.device) -> Callable[[], None]:
    """Takes a training step each time it is called, on random data."""
    torch.manual_seed(0)
    model = build(NETWORK).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    bnp = trimtab.BNP(model, spatial=spatial)  # type: ignore[arg-type]
    bnp.attach(optimizer)
    inputs = torch.rand(BATCH, *input_shape(NETWORK), device=device)
    targets = torch.randint(10, (BATCH,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def alternated(
    kinds: Mapping[str, Callable[[], None]], settled: Callable[[], None], rounds: int, steps: int
) -> dict[str, list[float]]:
    """Seconds a step of each kind in each round; they take turns, in the other order every second round.

    Args:
        kinds: What to time.
        settled: Waits for the device.
        rounds: How many.
        steps: Of each kind in a round; one more before them is not timed.
    """
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        for kind in list(kinds)[:: 1 if number % 2 else -1]:
            kinds[kind]()
            settled()
            started = time.perf_counter()
            for _ in range(steps):
                kinds[kind]()
            settled()
            found[kind].append((time.perf_counter() - started) / steps)
    return found
