"""A model held still leaves no trace, whatever it keeps and however it is used."""

import gc
import os
import random
import signal
import timeit
import weakref
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import trimtab
from tests.probes.untouched import untouched
from trimtab.probes.isolation import IsolatedModel
from trimtab.probes.isolation.signals import DeferredSignals
from trimtab.probes.result import CannotMeasure, by_layer
from trimtab.probes.surface import Surface, differentiate


class Odd(nn.Module):
    """Keeps state in all the places where a module can."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.5)
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))
        self.weighted = nn.utils.weight_norm(nn.Linear(6, 6)) if hasattr(nn.utils, "weight_norm") else nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)
        self.last.weight.requires_grad_(False)
        self.calls = 0
        self.kept: Tensor | None = None
        self.dice = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = self.drop(self.norm(self.first(x)).relu())
        self.kept = x = x + 0.1 * torch.rand(x.shape, generator=self.dice) + random.random() + np.random.rand()
        x = checkpoint(self.spectral, x, use_reentrant=False)
        return self.last(self.weighted(x))


def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


@pytest.fixture
def batch() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {"x": torch.randn(8, 4), "y": torch.arange(8) % 3}


@pytest.fixture
def odd() -> Odd:
    torch.manual_seed(1)
    with pytest.warns(FutureWarning) if "weight_norm" in dir(nn.utils) else nullcontext():
        return Odd()


@pytest.mark.parametrize("statistics", ["batch", "frozen", "running"])
def test_nothing_changes(statistics: str, odd: Odd, batch: dict[str, Tensor]) -> None:
    optimizer = torch.optim.Adam(odd.parameters())
    bnp = trimtab.BNP(odd, skip=("spectral", "weighted", "last")).attach(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        loss_fn(odd, batch).backward()
        optimizer.step()
    odd.norm.eval()
    calls = []
    odd.first.weight.register_hook(lambda g: calls.append(g))
    odd.first.weight.register_post_accumulate_grad_hook(lambda p: calls.append(p))
    calls_before, kept = odd.calls, odd.kept
    with untouched(odd, optimizer, bnp):
        surface = Surface(odd, loss_fn, batch, statistics=statistics)
        first, gradient = surface.gradient()
        again = surface.loss()
        surface.gradient(surface.moved(gradient, -0.1))
    assert first == pytest.approx(again)  # the same masks and the same noise
    assert odd.calls == calls_before and odd.kept is kept and not calls
    assert "last.weight" not in gradient


def test_runs_within_a_run_are_as_runs_one_by_one(odd: Odd, batch: dict[str, Tensor]) -> None:
    """With the same dropout, buffers and counters; and nothing of them is left in the model."""
    isolated = IsolatedModel(odd)
    points = [None, {name: 1.5 * value for name, value in isolated.parameters.items()}]

    def loss() -> tuple[float, int]:
        return float(loss_fn(odd, batch).detach()), odd.calls

    alone = [isolated.run(loss, point) for point in points]

    def both() -> list[tuple[float, int]]:
        loss_fn(odd, batch)
        return [isolated.run(loss, point) for point in points]

    with untouched(odd):
        assert isolated.run(both) == alone
        with pytest.raises(ZeroDivisionError):
            isolated.run(lambda: isolated.run(lambda: 1 / 0))
        assert isolated.run(lambda: (isolated.run(odd.eval), odd.training)[1])  # as it was before the inner run
    assert isolated.run(loss) == alone[0]


def test_a_failure_leaves_nothing_behind(odd: Odd, batch: dict[str, Tensor]) -> None:
    def fails(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        loss_fn(model, batch)
        raise RuntimeError("in the middle")

    with untouched(odd), pytest.raises(RuntimeError, match="in the middle"):
        Surface(odd, fails, batch).gradient()


def test_a_run_with_probing_is_bit_identical_to_one_without(batch: dict[str, Tensor]) -> None:
    def run(probing: bool) -> list[Tensor]:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3))
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        bnp = trimtab.BNP(model).attach(optimizer)
        for _ in range(5):
            if probing:
                Surface(model, loss_fn, batch).gradient()
                Surface(model, loss_fn, batch, statistics="frozen").loss()
            loss = loss_fn(model, batch)
            if probing:  # between the forward and the backward too
                Surface(model, loss_fn, batch).gradient()
            optimizer.zero_grad()
            loss.backward()
            if probing:
                Surface(model, loss_fn, batch).gradient()
            optimizer.step()
        bnp.detach()
        return [*model.parameters(), *model.buffers()]

    assert all(torch.equal(a, b) for a, b in zip(run(False), run(True), strict=True))


def test_gradient_equals_autograd(batch: dict[str, Tensor]) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()
    batch["x"] = batch["x"].double()
    value, gradient = Surface(model, loss_fn, batch).gradient()
    loss = loss_fn(model, batch)
    loss.backward()
    assert value == pytest.approx(loss.item())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradient[name], parameter.grad)


def test_tied_weights_move_together(batch: dict[str, Tensor]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    surface = Surface(model, lambda m, b: m(b["x"]).square().mean(), batch)
    direction = {"0.weight": torch.ones(4, 4)}
    moved = surface.loss(surface.moved(direction, 0.5))
    with torch.no_grad():
        model[0].weight += 0.5
        assert float(model(batch["x"]).square().mean()) == pytest.approx(moved)


def test_memory_is_given_back(batch: dict[str, Tensor]) -> None:
    model = nn.Linear(4, 3)
    seen = []

    def second(loss: Tensor, leaves: dict[str, Tensor]) -> Tensor:
        gradient = differentiate(loss, leaves, create_graph=True)
        seen.extend(weakref.ref(g) for g in gradient.values())
        return differentiate(sum(g.sum() for g in gradient.values()), leaves)["weight"]

    gc.collect()
    gc.disable()
    try:
        Surface(model, loss_fn, batch).inside(second)
        assert all(ref() is None for ref in seen)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("wrong", "found"), [(lambda m, b: m(b["x"]), "shape"), (lambda m, b: 1.0, "float"), (lambda m, b: None, "None")]
)
def test_a_loss_is_one_number(wrong, found: str, batch: dict[str, Tensor]) -> None:
    with pytest.raises(TypeError, match=f"loss_fn must return a tensor of one number.*{found}"):
        Surface(nn.Linear(4, 3), wrong, batch).loss()


def test_not_a_number_is_said(batch: dict[str, Tensor]) -> None:
    with pytest.raises(CannotMeasure, match="loss is nan"):
        Surface(nn.Linear(4, 3), lambda m, b: m(b["x"]).mean() * float("nan"), batch).gradient()
    with pytest.raises(CannotMeasure, match="not finite"):
        Surface(nn.Linear(4, 3), lambda m, b: (m(b["x"]) * 0).sqrt().sum(), batch).gradient()


def test_arguments() -> None:
    with pytest.raises(ValueError, match="statistics must be"):
        IsolatedModel(nn.Linear(2, 2), statistics="average")
    with pytest.raises(ValueError, match="lazy layers without parameters yet"):
        IsolatedModel(nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3)))
    with pytest.raises(ValueError, match="no parameter that is trained"):
        IsolatedModel(nn.ReLU())


def test_wrappers_are_looked_through(batch: dict[str, Tensor]) -> None:
    model = nn.Linear(4, 3)
    value = Surface(model, loss_fn, batch).loss()
    if not torch.cuda.is_available():  # else it moves the model to the GPU
        assert Surface(nn.DataParallel(model), loss_fn, batch).loss() == value
    assert Surface(torch.compile(model), loss_fn, batch).loss() == value


def test_compiled_parts_are_run_as_they_were_written(batch: dict[str, Tensor]) -> None:
    def curvature(loss: Tensor, leaves: dict[str, Tensor]) -> float:
        gradient = differentiate(loss, leaves, create_graph=True)
        second = differentiate(sum(g.square().sum() for g in gradient.values()), leaves)
        return float(torch.stack([g.sum() for g in second.values()]).sum())

    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    expected = Surface(model, loss_fn, batch).inside(curvature)
    part = nn.Sequential(torch.compile(model[0], backend="aot_eager"), *model[1:])
    assert Surface(part, loss_fn, batch).inside(curvature) == pytest.approx(expected)
    model.compile(backend="aot_eager")
    model(batch["x"])
    assert Surface(model, loss_fn, batch).inside(curvature) == pytest.approx(expected)


def test_parameters_belong_to_layers() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2)))
    assert set(by_layer(dict(model.named_parameters()))) == {"0", "1.0"}
    assert by_layer(["weight"]) == {"": ["weight"]}


class Meddling(nn.Module):
    """Changes what it can reach while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.average = nn.Linear(4, 3), nn.Linear(4, 3)
        self.average.requires_grad_(False)
        self.seen: list[int] = []
        self.counts: dict[str, int] = {}
        self.moving = torch.zeros(3)
        self.register_buffer("late", None)
        self.dice = [random.Random(0), np.random.default_rng(0), torch.Generator().manual_seed(0)]

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.layer.weight.mul_(0.5)
            for mine, other in zip(self.average.parameters(), self.layer.parameters(), strict=True):
                mine.lerp_(other, 0.1)
            self.moving += 1
            self.late = torch.ones(2) if self.late is None else self.late + 1
        self.seen.append(len(x))
        self.counts["calls"] = self.counts.get("calls", 0) + 1
        x.mul_(0.9)
        noise = self.dice[0].random() + self.dice[1].random() + torch.rand((), generator=self.dice[2])
        return self.layer(x) + self.average(x) + noise


def taking(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch.pop("y"))


def test_what_a_forward_meddles_with_is_put_back(batch: dict[str, Tensor]) -> None:
    model = Meddling()
    inside = [model.seen, model.counts, model.moving]
    original = {name: value.clone() for name, value in batch.items()}
    with untouched(model):
        surface = Surface(model, taking, batch)
        value, gradient = surface.gradient()
        assert surface.loss() == pytest.approx(value)
        met = surface.walk(gradient, [0.0, -0.1, 0.0], lambda loss, _: loss.item())
        assert met[0] == pytest.approx(value) and met[2] == pytest.approx(value) and met[1] != pytest.approx(value)
    assert model.seen == [] and model.counts == {} and not model.moving.any() and model.late is None
    assert [model.seen, model.counts, model.moving] == inside
    assert batch.keys() == original.keys() and all(torch.equal(batch[name], original[name]) for name in batch)
    assert [model.dice[0].random(), model.dice[1].random()] == [
        random.Random(0).random(),
        np.random.default_rng(0).random(),
    ]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # within callbacks of weak references
def test_an_interruption_at_any_moment_leaves_the_model_whole(batch: dict[str, Tensor]) -> None:
    """Ctrl-C by a timer, again and again, wherever the probe is then."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))

    def measure() -> None:
        surface = Surface(model, loss_fn, batch)
        _, gradient = surface.gradient()
        surface.walk(gradient, [-0.1, -0.2], lambda loss, _: loss.item())

    takes = min(timeit.repeat(measure, number=1, repeat=20))
    interrupted = 0
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    alarm = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    rng = random.Random(0)
    try:
        for _ in range(300):
            with untouched(model):
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 1.5 * takes))
                    measure()
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupted += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, alarm)
        signal.signal(signal.SIGINT, before)
    assert interrupted > 100


def test_reentrant_checkpointing_is_refused(batch: dict[str, Tensor]) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(checkpoint(self.inner, x.clone().requires_grad_(), use_reentrant=True))

    with pytest.raises(CannotMeasure, match="use_reentrant=False"):
        Surface(Checkpointed(), loss_fn, batch).gradient()


def test_frozen_statistics_of_a_constant_channel_and_of_a_norm_with_a_forward_of_its_own(batch) -> None:
    class Double(nn.BatchNorm1d):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    dead = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)).double()
    nn.init.zeros_(dead[0].weight)
    batch = {"x": batch["x"].double(), "y": batch["y"]}
    _, gradient = Surface(dead, loss_fn, batch, statistics="frozen").gradient()
    with torch.no_grad():
        dead[1].running_mean.copy_(dead[0].bias)
        dead[1].running_var.zero_()
    _, expected = Surface(dead, loss_fn, batch, statistics="running").gradient()
    torch.testing.assert_close(gradient["0.bias"], expected["0.bias"])
    with pytest.raises(ValueError, match="forward of its own"):
        Surface(nn.Sequential(nn.Linear(4, 3), Double(3)), loss_fn, batch, statistics="frozen").loss()


def test_a_signal_that_comes_while_a_failed_model_is_restored_is_not_lost() -> None:
    received: list[int] = []

    def fails() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert not received
        raise ValueError("in the middle")

    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        with pytest.raises(ValueError, match="in the middle"), DeferredSignals():
            fails()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]
