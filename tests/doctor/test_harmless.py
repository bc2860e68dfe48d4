"""A training with the doctor is, bit by bit, the training without."""

import copy
import gc
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import trimtab
from tests.doctor.trainings import cross_entropy, digits
from tests.probes.untouched import everything, same
from trimtab import Doctor


class Noisy(nn.Module):
    """Has all that a look could disturb: BatchNorm, dropout, a buffer that counts calls, a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(8 * 64, 10)
        self.generator = torch.Generator().manual_seed(5)
        self.register_buffer("calls", torch.zeros(()))
        self.list: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.list.append(len(self.list))
        x = x + 0.1 * torch.randn(x.shape, generator=self.generator)
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))).flatten(1))


def trained(level: Any, *, steps: int = 34, kind: Any = torch.optim.SGD, bnp: bool = False, **options: Any) -> Any:
    """All of a training's state at its end; augmentation draws from three generators."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    images, labels = digits()
    model = Noisy()
    optimizer = kind(model.parameters(), **options)
    attached = trimtab.BNP(model).attach(optimizer) if bnp else None
    loader = torch.utils.data.DataLoader(list(zip(images[:64], labels[:64], strict=True)), 16, shuffle=True)
    doctor = None
    if level is not None:
        doctor = Doctor(model, optimizer, cross_entropy, level=level, validation=loader, every=8)
    losses = []
    for _ in range(steps):
        rows = torch.randint(1000, (16,))
        shifted = torch.roll(images[rows], (random.randint(-1, 1), int(np.random.randint(-1, 2))), (2, 3))
        batch = shifted, labels[rows]
        loss = cross_entropy(model, batch)
        optimizer.zero_grad()
        loss.backward()
        if doctor is not None:
            doctor.step(batch, loss)
        optimizer.step()
        losses.append(loss.item())
    if doctor is not None:
        assert not [problem for problem in doctor.record.problems if problem.what in ("look", "trial", "hooks", "loss")]
        assert doctor.record.losses == losses
        assert len(doctor.record.looks) > 5
        assert bool(doctor.record.trials) == (level != "light")
        doctor.diagnosis()
        doctor.close()
    state = everything(model, optimizer, attached)
    del state["hooks"]  # BNP's own are others in each training
    return losses, {name: copy.deepcopy(part) for name, part in state.items()}, model.generator.get_state(), model.list


def without_identities(state: Any) -> Any:
    """The same, without what differs from process to process and from object to object."""
    losses, parts, generator, calls = state
    parts["parameters"] = [(name, value, trained) for name, value, trained, _ in parts["parameters"]]
    parts["gradients"] = [None if each is None else each[0] for each in parts["gradients"]]
    parts["buffers"] = [(name, value) for name, value, _ in parts["buffers"]]
    return losses, parts, generator, calls


@pytest.mark.parametrize("level", ["light", "standard", "full"])
def test_training_with_the_doctor_is_the_training_without(level: str) -> None:
    options = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}
    plain, looked_at = (without_identities(trained(each, **options)) for each in (None, level))
    assert same(plain, looked_at)


@pytest.mark.parametrize(("kind", "bnp"), [(torch.optim.AdamW, False), (torch.optim.SGD, True)])
def test_with_other_optimizers_and_with_bnp(kind: Any, bnp: bool) -> None:
    plain, looked_at = (without_identities(trained(each, kind=kind, bnp=bnp, lr=0.01)) for each in (None, "full"))
    assert same(plain, looked_at)


def test_no_hook_stays_where_no_look_is_due() -> None:
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = Doctor(model, optimizer, cross_entropy)
    images, labels = digits()
    hooked = []
    for _ in range(40):
        hooked.append(bool(model._forward_hooks))
        batch = images[:8].flatten(1), labels[:8]
        loss = cross_entropy(model, batch)
        loss.backward()
        doctor.step(batch, loss)
        optimizer.step()
    assert [step for step, on in enumerate(hooked) if on] == [0, 4, 8, 16]
    assert [look.step for look in doctor.record.looks] == [0, 4, 8, 16, 32]
    doctor.close()
    assert not model._forward_hooks


def test_a_probe_that_fails_is_a_note() -> None:
    calls = 0

    def breaks(model: nn.Module, batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        raise RuntimeError("no loss today")

    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = digits()
    with Doctor(model, optimizer, breaks, level="full") as doctor:
        for _ in range(20):
            batch = images[:8].flatten(1), labels[:8]
            loss = cross_entropy(model, batch)
            optimizer.zero_grad()
            loss.backward()
            doctor.step(batch, loss)
            optimizer.step()
    assert calls
    assert any("no loss today" in problem.sentence for problem in doctor.record.problems)
    assert any("no loss today" in note.sentence for note in doctor.diagnosis().notes)


def test_a_look_at_activations_that_fails_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no signal today")

    monkeypatch.setattr("trimtab.doctor.watch.signal_of", fail)
    images, labels = digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = Doctor(model, optimizer, cross_entropy)
    for _ in range(2):
        loss = cross_entropy(model, (images[:8], labels[:8]))
        optimizer.zero_grad()
        loss.backward()
        doctor.step((images[:8], labels[:8]), loss)
        optimizer.step()
    (problem,) = doctor.record.problems
    assert (problem.what, problem.sentence) == ("activations", "1: RuntimeError: no signal today")


def test_copies_of_a_model_that_is_looked_at_are_not_looked_at() -> None:
    model = nn.Sequential(nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = Doctor(model, optimizer, cross_entropy)
    images, labels = digits()
    twin = copy.deepcopy(model)
    cross_entropy(twin, (images[:8].flatten(1), labels[:8])).backward()
    assert not doctor._watch._signals


def test_a_validation_loader_keeps_the_state_of_its_own_generator() -> None:
    images, labels = digits()
    generator = torch.Generator().manual_seed(1)
    data = torch.utils.data.TensorDataset(images.flatten(1), labels)
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, generator=generator)
    before = generator.get_state()
    model = nn.Linear(64, 10)
    Doctor(model, torch.optim.SGD(model.parameters(), lr=0.1), cross_entropy, level="standard", validation=loader)
    assert torch.equal(generator.get_state(), before)


def some_steps(doctor: Doctor, model: nn.Module, optimizer: Any, count: int, batch_of: Any = tuple) -> None:
    images, labels = digits()
    for step in range(count):
        batch = images[8 * step :][:8].flatten(1), labels[8 * step :][:8]
        loss = cross_entropy(model, batch)
        optimizer.zero_grad()
        loss.backward()
        doctor.step(batch_of(batch), loss)
        optimizer.step()


@pytest.mark.slow
def test_a_page_draws_no_random_number(tmp_path: Path) -> None:
    code = """
import random, sys
import torch
from trimtab import Doctor
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
doctor = Doctor(model, optimizer, lambda model, batch: model(batch).sum())
before = random.getstate()
doctor.report(sys.argv[1])
sys.exit(random.getstate() != before)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "report.html")], check=True)


def test_a_doctor_that_nobody_has_any_more_leaves_no_hook() -> None:
    model = nn.Sequential(nn.Linear(64, 10))
    doctor = Doctor(model, torch.optim.SGD(model.parameters(), lr=0.1), cross_entropy)
    assert model[0]._forward_hooks
    del doctor
    gc.collect()
    assert not model[0]._forward_hooks


class NotCopied(list[Tensor]):
    def __deepcopy__(self, memo: Any) -> Any:
        raise AttributeError("no copies of this")


def test_a_batch_that_cannot_be_copied_is_used_as_it_is() -> None:
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = Doctor(model, optimizer, cross_entropy, level="full", every=4)
    some_steps(doctor, model, optimizer, 20, NotCopied)
    assert not doctor.record.problems
    assert len(doctor.record.trials) == 5


def test_options_of_an_optimizer_that_are_none_count_as_0() -> None:
    """As the rate of an Adafactor that chooses its steps itself."""

    class OwnRate(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            with torch.no_grad():
                for p in self.param_groups[0]["params"]:
                    p -= 0.1 * p.grad

    model = nn.Linear(64, 10)
    optimizer = OwnRate(model.parameters(), lr=0.1)
    optimizer.param_groups[0].update(lr=None, weight_decay=None)
    doctor = Doctor(model, optimizer, cross_entropy, level="standard", every=4)
    some_steps(doctor, model, optimizer, 20)
    assert not doctor.record.problems
    assert (doctor.record.looks[0].lr, doctor.record.facts.weight_decay) == (0.0, 0.0)
    doctor.diagnosis()


def test_copies_of_a_doctor_look_at_their_own_model() -> None:
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = Doctor(model, optimizer, cross_entropy, level="standard", every=4)
    some_steps(doctor, model, optimizer, 6)
    for twin in (copy.deepcopy(doctor), pickle.loads(pickle.dumps(doctor))):
        before = [p.clone() for p in model.parameters()]
        some_steps(twin, twin._model, twin._optimizer, 8)
        assert [look.step for look in twin.record.looks] == [0, 2, 4, 6, 8, 10, 12]
        assert [look.step for look in doctor.record.looks] == [0, 2, 4]
        assert not twin.record.problems
        assert all(map(torch.equal, before, model.parameters()))


def test_validation_data_are_moved_to_where_the_model_is() -> None:
    model = nn.Linear(64, 10, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = {"x": torch.ones(2, 64), "more": [torch.ones(2)], "name": "one"}
    doctor = Doctor(model, optimizer, cross_entropy, level="standard", validation=[batch])
    (kept,) = doctor._validation
    assert kept["x"].is_meta and kept["more"][0].is_meta and kept["name"] == "one"
    assert not batch["x"].is_meta


def test_validation_data_that_do_not_fit_leave_the_trials() -> None:
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = Doctor(model, optimizer, cross_entropy, level="standard", every=4, validation=[{"x": torch.ones(2, 64)}])
    some_steps(doctor, model, optimizer, 12)
    assert len(doctor.record.trials) == 3
    (problem,) = doctor.record.problems
    assert (problem.what, problem.sentence) == ("validation", "KeyError: 0")


def test_activations_where_the_default_type_is_another() -> None:
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = Doctor(model, optimizer, cross_entropy)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        some_steps(doctor, model, optimizer, 2)
    finally:
        torch.set_default_dtype(usual)
    assert not doctor.record.problems
    assert all(layer.output_rms > 0 for layer in doctor.record.looks[0].layers)


class Block(nn.Module):
    """A forward of one's own: of torch's modules nothing is compiled in place."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(64, 16)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.dense(x)))


class InTwoParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.last = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))


def _all_in_place(model: InTwoParts, backend: Any) -> nn.Module:
    model.compile(backend=backend)
    return model


def _part(model: InTwoParts, backend: Any) -> nn.Module:
    model.first = torch.compile(model.first, backend=backend)  # type: ignore[assignment]
    return model


def _part_in_place(model: InTwoParts, backend: Any) -> nn.Module:
    model.first.compile(backend=backend)
    return model


def _within_a_function(model: InTwoParts, backend: Any) -> nn.Module:
    """Compiled by something that the doctor is not told of: it sees that afterwards."""
    forward = torch.compile(model.forward, backend=backend)
    model.forward = lambda x: forward(x)  # type: ignore[method-assign]
    return model


def _all(model: InTwoParts, backend: Any) -> nn.Module:
    return torch.compile(model, backend=backend)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("compiled", "seen"),
    [
        (_all, []),
        (_all_in_place, []),
        (_part, ["last"]),
        (_part_in_place, ["last"]),
        (_within_a_function, []),
    ],
)
def test_what_is_compiled_is_not_compiled_anew(compiled: Any, seen: list[str]) -> None:
    compilations = 0

    def backend(graph: Any, inputs: Any) -> Any:
        nonlocal compilations
        compilations += 1
        return graph.forward

    def train(level: Any) -> tuple[int, list[float], Doctor | None]:
        nonlocal compilations
        torch._dynamo.reset()
        compilations = 0
        torch.manual_seed(0)
        model = compiled(InTwoParts(), backend)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        doctor = Doctor(model, optimizer, cross_entropy, level=level, every=8) if level else None
        images, labels = digits()
        losses = []
        for step in range(18):
            batch = images[8 * step :][:8].flatten(1), labels[8 * step :][:8]
            loss = cross_entropy(model, batch)
            optimizer.zero_grad()
            loss.backward()
            if doctor is not None:
                doctor.step(batch, loss)
            optimizer.step()
            losses.append(loss.item())
        return compilations, losses, doctor

    plain, losses, _ = train(None)
    looked_at, same_losses, doctor = train("standard")
    told = compiled is not _within_a_function
    assert plain and looked_at <= plain + (0 if told else 1) and same_losses == losses
    assert doctor is not None
    (problem,) = doctor.record.problems
    assert problem.what == "activations" and "compiled anew" in problem.sentence
    assert doctor.record.trials
    first = doctor.record.looks[0]
    assert [layer.layer for layer in first.layers if layer.output_rms > 0] == seen
