"""Stacked networks against the same networks trained by themselves."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from trimtab.data import Dataset, load
from trimtab.training.recipes import resolve
from trimtab.training.session import Session
from trimtab.training.settings import Settings
from trimtab.training.sweep.stack import Stack

CPU = torch.device("cpu")
STEPS = 20
OPTIMIZERS: dict[str, dict[str, object]] = {
    "sgd": {"optimizer": "sgd"},
    "momentum": {"optimizer": "sgd", "momentum": 0.9},
    "nesterov": {"optimizer": "sgd", "momentum": 0.9, "nesterov": True},
    "adam": {"optimizer": "adam"},
    "adamw": {"optimizer": "adamw"},
}
NORMS = ["vanilla", "bn", "gn", "ln", "wn", "brn", "ghost", "bn4", "l1", "mean-bn", "var-bn", "bn-stopgrad"]
CASES = [
    *((method, "small-mlp", name) for method in ("bnp", "gn", "ln") for name in OPTIMIZERS),
    ("bn", "small-mlp", "sgd"),
    # Behind a unit that is always 0, BatchNorm's gradients are rounding errors, which Adam makes steps of; so a CNN.
    *(("bn", "small-cnn", name) for name in OPTIMIZERS),
    *((method, "small-mlp", "momentum") for method in (*NORMS, "bnp-debias", "bnp+gn", "bnp+ln")),
    *((method, "small-cnn", "sgd") for method in NORMS),
]


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits", None)


def settings(**given: object) -> list[Settings]:
    """Three networks that differ in all that a stack allows."""
    common = {"steps": STEPS, "batch_size": 16, "data": "digits", **given}
    norm = str(given["method"]).removeprefix("bnp").removeprefix("-debias").removeprefix("+")
    gammas = (1.0, 0.5, 2.0) if norm not in ("", "vanilla") else (1.0,) * 3
    zetas = (0.0, 0.01, 0.1) if norm not in ("", "vanilla") else (0.0,) * 3
    numbers = zip((0.01, 0.003, 0.02), (0, 1, 0), (0.0, 0.1, 0.01), (1.0, 0.5, 2.0), gammas, zetas, strict=True)
    return [
        resolve(Settings(**common, lr=lr, seed=seed, weight_decay=decay, init_scale=scale, gamma=gamma, zeta=zeta))  # type: ignore[arg-type]
        for lr, seed, decay, scale, gamma, zeta in numbers
    ]


def take_step(stack: Stack) -> None:
    drawn = [stream.batch_of(stack.step) for stream in stack._streams]
    inputs, targets = (torch.stack(parts)[stack._stream_of] for parts in zip(*drawn, strict=True))
    stack._take_step(inputs.double(), targets)
    stack.step += 1


def tensors_of(session: Session) -> dict[str, Tensor]:
    """All that a step changes: parameters, buffers, and BNP's averages."""
    found = {**dict(session.model.named_parameters()), **dict(session.model.named_buffers())}
    if session.bnp is not None:
        for name, state in session.bnp.state_dict()["layers"].items():
            found |= {f"{name}.{key}": value for key, value in state.items() if key in ("mean", "variance")}
    return found


def stacked(stack: Stack, name: str, network: int) -> Tensor:
    for tensors in (stack.network.parameters, stack.network.constants, stack.network.buffers):
        if name in tensors:
            return tensors[name][network]
    assert stack._bnp is not None
    layer, _, key = name.rpartition(".")
    found = getattr(stack._bnp.averages[layer], key)
    assert isinstance(found, Tensor)
    return found[network]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's own weight norm
@pytest.mark.parametrize(
    ("method", "network", "optimizer"),
    [
        pytest.param(*case, marks=pytest.mark.slow) if case[1] == "small-cnn" and case[0] != "bn" else case
        for case in CASES
    ],
)
def test_each_step_from_one_state_is_that_of_a_network_by_itself(
    method: str, network: str, optimizer: str, digits: Dataset
) -> None:
    chosen = settings(method=method, network=network, **OPTIMIZERS[optimizer])
    stack = Stack(chosen, digits, CPU)
    alone = [Session(one, CPU, dataset=digits) for one in chosen]
    moved = False
    for _ in range(STEPS):
        take_step(stack)
        for number, session in enumerate(alone):
            before = {name: value.detach().clone() for name, value in tensors_of(session).items()}
            inputs, targets = session.next_batch()
            session.advance((inputs.double(), targets))
            for name, value in tensors_of(session).items():
                ours = stacked(stack, name, number)
                torch.testing.assert_close(ours.to(value.dtype), value, rtol=1e-10, atol=1e-10, msg=f"{name}, {number}")
                moved |= bool((value.detach() != before[name]).any()) if name in before else True
                with torch.no_grad():  # from one state: what was rounded otherwise does not add up
                    ours.copy_(value)
            torch.testing.assert_close(stack._losses[number].item(), session.take_means()[0], rtol=1e-10, atol=1e-10)
        if optimizer != "sgd":  # and the optimizer's
            _copy_optimizer_state(alone, stack)
    assert moved


def _copy_optimizer_state(alone: list[Session], stack: Stack) -> None:
    names = {id(p): name for session in alone for name, p in session.model.named_parameters()}
    keys = ("momentum_buffer",) if stack.settings[0].optimizer == "sgd" else ("exp_avg", "exp_avg_sq")
    for number, session in enumerate(alone):
        for parameter, state in session.optimizer.state.items():
            for place, key in enumerate(keys):
                ours = stack._optimizer.state[names[id(parameter)]][place][number]
                torch.testing.assert_close(ours, state[key], rtol=1e-10, atol=1e-10)
                ours.copy_(state[key])


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [("bn", "momentum"), ("bnp", "momentum"), ("ln", "sgd"), ("gn", "momentum"), ("ln", "adam")],
)
def test_whole_trajectories_stay_as_close_as_one_that_was_nudged(method: str, optimizer: str, digits: Dataset) -> None:
    chosen = settings(method=method, network="small-mlp", **OPTIMIZERS[optimizer])
    stack = Stack(chosen, digits, CPU)
    alone, nudged = ([Session(one, CPU, dataset=digits) for one in chosen] for _ in range(2))
    for session in nudged:
        for parameter in session.model.parameters():
            parameter.data.mul_(1 + 1e-15)
    for _ in range(STEPS):
        take_step(stack)
        for session in (*alone, *nudged):
            inputs, targets = session.next_batch()
            session.advance((inputs.double(), targets))
    for number, (session, other) in enumerate(zip(alone, nudged, strict=True)):
        pairs = list(zip(session.model.named_parameters(), other.model.parameters(), strict=True))
        distance = max(float((p - q).detach().abs().max()) for (_, p), q in pairs)
        ours = max(float((p - stacked(stack, name, number)).detach().abs().max()) for (name, p), _ in pairs)
        assert ours <= 10 * max(distance, 1e-13)


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_outcomes_are_those_of_the_lab(loss: str, digits: Dataset) -> None:
    torch.set_default_dtype(torch.float32)
    chosen = [replace(one, lr=0.001) for one in settings(method="ln", network="small-mlp", loss=loss)]
    stack = Stack(chosen, digits, CPU)
    while not stack.finished:
        stack.advance()
    for one, outcome in zip(chosen, stack.outcomes(), strict=True):
        session = Session(one, CPU, dataset=digits)
        for _ in range(STEPS):
            session.advance()
        loss_alone, accuracy_alone = session.evaluate()
        assert outcome.loss == pytest.approx(loss_alone, rel=1e-3)
        assert outcome.accuracy == pytest.approx(accuracy_alone, abs=0.01)


@pytest.mark.parametrize("method", ["bn", "brn", "ln", "bnp"])
def test_in_bfloat16_losses_are_those_of_a_network_by_itself(method: str, digits: Dataset) -> None:
    torch.set_default_dtype(torch.float32)
    chosen = [replace(one, precision="bf16") for one in settings(method=method, network="small-mlp")]
    stack = Stack(chosen, digits, CPU)
    alone = [Session(one, CPU, dataset=digits) for one in chosen]
    for _ in range(3):
        stack.advance()
        for number, session in enumerate(alone):
            session.advance()
            assert stack._losses[number].item() == pytest.approx(session.take_means()[0], rel=0.02)


def test_an_exploded_network_leaves_the_others_as_they_are(digits: Dataset) -> None:
    torch.set_default_dtype(torch.float32)
    good = settings(method="bn", network="small-mlp", loss="squared")
    bad = [replace(good[0], lr=1e9), replace(good[1], lr=1e20)]
    mixed, pure = Stack([bad[0], *good, bad[1]], digits, CPU), Stack(good, digits, CPU)
    for stack in (mixed, pure):
        while not stack.finished:
            stack.advance()
    assert len(mixed.numbers) == len(good)  # the others were taken out
    first, *middle, last = mixed.outcomes()
    assert middle == pure.outcomes()
    for outcome, one in ((first, bad[0]), (last, bad[1])):
        session = Session(one, CPU, dataset=digits)
        session.advance()
        session.set_loss_limit(session.loss_so_far())
        while session.step < STEPS:
            session.advance()
        assert outcome.loss is None
        assert outcome.exploded_at == session.exploded_at() == 2


def test_a_stack_that_is_saved_and_restored_goes_on_as_it_would_have(digits: Dataset) -> None:
    torch.set_default_dtype(torch.float32)
    chosen = [
        *settings(method="bnp+ln", network="small-mlp", optimizer="adam"),
        *settings(method="bnp+ln", network="small-mlp", optimizer="adam", momentum=None),
    ]
    chosen[-1] = replace(chosen[-1], lr=1e12)
    whole, first = Stack(chosen, digits, CPU), Stack(chosen, digits, CPU)
    while not whole.finished:
        whole.advance()
    for _ in range(13):  # beyond the first compaction
        first.advance()
    second = Stack(chosen, digits, CPU)
    second.restore(first.state())
    while not second.finished:
        second.advance()
    assert second.outcomes() == whole.outcomes()


def test_noise_differs_between_networks(digits: Dataset) -> None:
    torch.set_default_dtype(torch.float32)
    same = settings(method="noisy-bn", network="small-mlp")[0]
    stack = Stack([same, same], digits, CPU)
    stack.advance()
    one, other = stack.network.parameters["1.weight"]
    assert not torch.equal(one, other)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("method", "network"), [("bn", "small-mlp"), ("bnp", "small-mlp"), ("bn", "small-cnn")])
def test_captured_steps_are_those_of_a_cpu(method: str, network: str, digits: Dataset) -> None:
    chosen = [replace(one, steps=60, step_mode="auto") for one in settings(method=method, network=network)]
    stacks = Stack(chosen, digits, CPU), Stack(chosen, digits, torch.device("cuda"))
    for stack in stacks:
        while not stack.finished:
            stack.advance()
    assert str(stacks[1]._stepper.mode) == "captured CUDA graph"
    for ours, theirs in zip(*(stack.outcomes() for stack in stacks), strict=True):
        assert theirs.loss == pytest.approx(ours.loss, rel=1e-6)
