"""Runs of the lab in several processes, against the same runs in one: in float64, since training amplifies rounding."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from tests.distributed.pool import Pool, process_group
from trimtab.training import session as sessions
from trimtab.training.objective import Objective
from trimtab.training.processes import Processes
from trimtab.training.recipes import resolve
from trimtab.training.session import Session
from trimtab.training.settings import Settings
from trimtab.training.stepping.steppers import choose_step_mode

CPU = torch.device("cpu")
STEPS = 30
CASES: dict[str, dict[str, Any]] = {
    "vanilla": {"method": "vanilla"},
    "bnp": {"method": "bnp"},
    "gn": {"method": "gn", "network": "small-cnn", "augment": True},
    "in": {"method": "in", "network": "small-cnn"},
    "ln": {"method": "ln", "optimizer": "adam", "lr": 0.001},
    "wn": {"method": "wn", "momentum": 0.9},
    "bnp+gn, decay of gamma": {"method": "bnp+gn", "zeta": 0.01, "optimizer": "adamw", "lr": 0.001},
    "regression": {"data": "gaussian", "network": "dln25", "method": "vanilla", "lr": None},
    "no sample for some": {"method": "bnp", "batch_size": 1},
}


def new_session(told: dict[str, Any], processes: Processes) -> Session:
    usual = {"network": "small-mlp", "batch_size": 20, "steps": STEPS, "lr": 0.03}
    return Session(resolve(Settings(**{**usual, **told})), CPU, processes=processes)


@contextmanager
def float64() -> Iterator[None]:
    """Within, networks are made and trained in float64; the sums of the recorded losses stay in float32."""
    with pytest.MonkeyPatch.context() as patch:
        network = sessions.network
        patch.setattr(sessions, "network", lambda *args: network(*args).double())
        patch.setattr(Objective, "output", lambda self, model, inputs: model(inputs.double()))
        yield


def tensors(session: Session) -> dict[str, np.ndarray]:
    """What a run has learned, without the running statistics of BatchNorm."""
    found = {name: value.detach().numpy() for name, value in session.model.named_parameters()}
    if session.bnp is not None:
        for name, state in session.bnp.state_dict()["layers"].items():
            found |= {f"{name} {key}": value.numpy() for key, value in state.items() if isinstance(value, torch.Tensor)}
    return found


def trained(told: dict[str, Any], processes: Processes, stops: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    """Train, and at each stop go on in a new session from what a checkpoint would have saved."""
    session = new_session(told, processes)
    for stop in (*stops, session.total):
        while session.step < stop:
            session.advance()
        if stop < session.total:
            state = processes.from_first(session.state_of_all())
            session = new_session(told, processes)
            session.restore(state)
    loss, accuracy = session.means()
    evaluated = session.evaluate()
    numbers = [loss, accuracy or 0.0, evaluated[0], evaluated[1] or 0.0]
    return {**tensors(session), "recorded": np.array(numbers)}


def together(rank: int, size: int, store: str, told: dict[str, Any], stops: tuple[int, ...] = ()) -> Any:
    with process_group(rank, size, store), float64():
        return trained(told, Processes.of_group(), stops)


def alone(told: dict[str, Any]) -> dict[str, np.ndarray]:
    with float64():
        return trained(told, Processes())


def in_the_pool(pool: Pool, told: dict[str, Any], stops: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    """What the processes have learned, which is the same to the bit in each."""
    first, *others = pool.run(together, told, stops)
    for other in others:
        assert [name for name in other if not np.array_equal(first[name], other[name])] == []
    return first  # type: ignore[no-any-return]


def check_close(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        gap = float(np.abs(ours[name] - value).max())
        assert gap <= (1e-6 if name == "recorded" else 1e-9) * max(float(np.abs(value).max()), 1e-3), (name, gap)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_are_one(case: str, two: Pool) -> None:
    check_close(in_the_pool(two, CASES[case]), alone(CASES[case]))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_three_processes_are_one(case: str, three: Pool) -> None:
    """20 samples are 7, 7 and 6."""
    check_close(in_the_pool(three, CASES[case]), alone(CASES[case]))


def test_batch_norm_takes_the_share_of_each_process(two: Pool) -> None:
    """Two processes with 16 samples each are one process with ghosts of 16."""
    told = {"network": "small-cnn", "batch_size": 32}
    ours, theirs = in_the_pool(two, {**told, "method": "bn"}), alone({**told, "method": "ghost"})
    for numbers in (ours, theirs):
        del numbers["recorded"]  # the evaluation is with other running statistics
    check_close(ours, theirs)


@pytest.mark.parametrize("method", ["bn", "noisy-bn"])
def test_evaluation_is_with_the_statistics_of_the_first_process(method: str, two: Pool) -> None:
    for ours, alone in two.run(evaluated_together, method):
        assert np.allclose(ours, alone, rtol=1e-5)


def evaluated_together(rank: int, size: int, store: str, method: str) -> Any:
    with process_group(rank, size, store):
        processes = Processes.of_group()
        session = new_session({"method": method}, processes)
        for _ in range(5):
            session.advance()
        state = processes.from_first(session.model.state_dict())
        alone = new_session({"method": method}, Processes())
        alone.model.load_state_dict(state)
        return session.evaluate(), alone.evaluate()


@pytest.mark.parametrize("told", [{"method": "noisy-bn"}, {"method": "bnp", "batch_size": 21}], ids=str)
def test_going_on_is_bit_identical(told: dict[str, Any], two: Pool) -> None:
    whole, parts = in_the_pool(two, told), in_the_pool(two, told, (7, 19))
    assert [name for name in whole if not np.array_equal(whole[name], parts[name])] == []


@pytest.mark.slow
@pytest.mark.parametrize("told", [{"method": "noisy-bn"}, {"network": "small-cnn", "method": "bnp"}], ids=str)
def test_going_on_is_bit_identical_in_three_processes(told: dict[str, Any], three: Pool) -> None:
    """Three numbers have more than one order to be added in, and DistributedDataParallel has one for its first step."""
    whole, parts = in_the_pool(three, told), in_the_pool(three, told, (7, 19))
    assert [name for name in whole if not np.array_equal(whole[name], parts[name])] == []


def noise(rank: int, size: int, store: str) -> Any:
    with process_group(rank, size, store):
        new_session({"method": "noisy-bn"}, Processes.of_group())
        return torch.rand(4).tolist()


def test_each_process_has_its_own_noise(two: Pool) -> None:
    first, second = two.run(noise)
    assert first != second
    new_session({"method": "noisy-bn"}, Processes())
    assert first == torch.rand(4).tolist()


def test_a_norm_that_has_nothing_to_normalize_is_refused() -> None:
    for method in ("bn", "in"):
        with pytest.raises(ValueError, match="no sample for some of 3 processes"):
            new_session({"method": method, "network": "small-cnn", "batch_size": 2}, Processes(0, 3))


def test_each_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", "1")  # on the second of two machines
    assert Processes(3, 4).own_device(torch.device("cuda")) == torch.device("cuda", 1)
    assert chosen == [1]
    assert Processes(3, 4).own_device(CPU) == CPU
    with pytest.raises(ValueError, match="of which each takes its own; use cuda"):
        Processes(3, 4).own_device(torch.device("cuda:1"))
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match="there are 2; start fewer"):
        Processes(2, 3).own_device(torch.device("cuda"))


@pytest.mark.parametrize("wanted", ["auto", "captured"])
def test_steps_of_several_processes_are_not_captured(wanted: Any) -> None:
    mode = choose_step_mode(wanted, torch.device("cuda"), 1000, probes=False, several_processes=True)
    assert str(mode) == "eager (steps of several processes are not captured)"
