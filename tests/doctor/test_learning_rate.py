"""`suggest_lr`: its trials are real trainings, nothing changes, and the rate is what a closed form says."""

import copy
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import trimtab
from tests.probes.untouched import everything, same, untouched
from trimtab.doctor.learning_rate import SuggestedRate, suggest_lr
from trimtab.doctor.learning_rate_trials import Drawn, Trials, draw
from trimtab.probes import CannotMeasure

Batch = tuple[Tensor, Tensor]
Optimizer = torch.optim.Optimizer

OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), 0.05),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), 0.02, momentum=0.9, weight_decay=0.01),
    "adam": lambda model: torch.optim.Adam(model.parameters(), 0.003),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), 0.003, weight_decay=0.1),
    "tensor": lambda model: torch.optim.Adam(model.parameters(), torch.tensor(0.003)),
}


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def data(count: int, size: int = 8) -> list[Batch]:
    generator = torch.Generator().manual_seed(3)
    found = []
    for _ in range(count):
        x = torch.randn(size, 2, 4, 4, generator=generator)
        found.append((x + 0.5, (x.mean((1, 2, 3)) > 0).long() + (x[:, 0, 0, 0] > 0).long()))
    return found


def made(kind: str, *, bnp: bool = False) -> tuple[nn.Module, Optimizer, trimtab.BNP | None]:
    """A model with BatchNorm and dropout, two steps into its training."""
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(64, 3)
    )
    optimizer = OPTIMIZERS[kind](model)
    attached = trimtab.BNP(model).attach(optimizer) if bnp else None
    train(model, optimizer, data(2))
    return model, optimizer, attached


def train(model: nn.Module, optimizer: Optimizer, batches: list[Batch]) -> None:
    for batch in batches:
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()


@pytest.mark.parametrize("bnp", [False, True], ids=["plain", "bnp"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_trial_is_the_training_itself(kind: str, bnp: bool) -> None:
    """Its losses are, to the last bit, those of a training that is made with the same random numbers."""
    batches = data(7)
    model, optimizer, _ = made(kind, bnp=bnp)
    trials = Trials(model, optimizer, loss_fn, Drawn(batches[:4], batches[4:]))
    random = torch.get_rng_state()
    found = trials.train(0.5, 6, [3, 6], lambda share: 1.0)

    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * 0.5
    torch.set_rng_state(random)
    expected = []
    for stretch in ([0, 1, 2], [3, 0, 1]):
        train(model, optimizer, [batches[place] for place in stretch])
        now, buffers = torch.get_rng_state(), copy.deepcopy(model.state_dict())
        torch.set_rng_state(random)  # the same dropout at each look
        with torch.no_grad():
            expected.append(sum(float(loss_fn(model, batch)) for batch in batches[4:]) / 3)
        torch.set_rng_state(now)
        model.load_state_dict(buffers)
    assert found == tuple(expected)
    assert trials.cost == pytest.approx(6 + 2 * 3 / 3)


@pytest.mark.parametrize("bnp", [False, True], ids=["plain", "bnp"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_nothing_changes(kind: str, bnp: bool) -> None:
    model, optimizer, attached = made(kind, bnp=bnp)
    with untouched(model, optimizer, attached):
        suggest_lr(model, optimizer, loss_fn, data(20), steps=12)


def test_nothing_changes_when_it_fails_on_the_way() -> None:
    model, optimizer, attached = made("adam", bnp=True)
    calls = 0

    def fails(model: nn.Module, batch: Batch) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 40:
            raise KeyboardInterrupt
        return loss_fn(model, batch)

    with untouched(model, optimizer, attached), pytest.raises(KeyboardInterrupt):
        suggest_lr(model, optimizer, fails, data(20), steps=12)


def test_the_training_goes_on_as_without_it() -> None:
    """With a loader that shuffles, by torch's generator and by one of its own."""

    def trained(asked: bool, generator: torch.Generator | None) -> Any:
        model, optimizer, _ = made("momentum", bnp=True)
        x, y = (torch.cat(parts) for parts in zip(*data(10), strict=True))
        loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True, generator=generator)
        if asked:
            suggest_lr(model, optimizer, loss_fn, loader, steps=12)
        train(model, optimizer, list(loader))
        return everything(model, optimizer)["parameters"]

    for own in (None, torch.Generator()):
        found = [trained(asked, own and own.manual_seed(1)) for asked in (False, True)]
        assert all(same(a[1], b[1]) for a, b in zip(*found, strict=True))


class Quadratic(nn.Module):
    """½ Σ aᵢ wᵢ² with as much of each wᵢ: gradient descent is known in closed form."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))


CURVATURES = torch.tensor([1.0, 0.25])


def quadratic(model: nn.Module, batch: Any) -> Tensor:
    return 0.5 * (CURVATURES * model.w.square()).sum()


def after(rate: float, steps: int) -> float:
    return sum(0.5 * a * (1 - rate * a) ** (2 * steps) for a in CURVATURES.tolist())


def test_the_rate_is_near_the_best_in_closed_form() -> None:
    model = Quadratic()
    suggested = suggest_lr(
        model, torch.optim.SGD(model.parameters(), 1e-3), quadratic, [0, 1], schedule="constant", steps=30
    )
    for one in suggested.tried:
        expected = looked(one.rate, one.steps)
        assert one.loss == (pytest.approx(expected, rel=1e-3, abs=1e-9) if expected < 100 else math.inf)
    fine = [1.05**k for k in range(-60, 30)]
    best = min(fine, key=lambda rate: looked(rate, 30))
    assert best / 2 < suggested.rate < 2.0  # the largest stable rate is 2
    assert looked(suggested.rate, 30) < 0.05 * looked(best / 3, 30)
    assert suggested.edge is None and suggested.trend is None
    assert suggested.notes[0].startswith("It is for a training of some 30 steps")
    assert suggested.notes[1].startswith("There were 1 batches")


class Noisy(nn.Module):
    """Many such at once, whose gradients have noise, so that a constant rate keeps the loss above some floor."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(COPIES, 2))


COPIES = 300


def noisy(model: nn.Module, batch: Tensor) -> Tensor:
    return quadratic(model, None) + (batch * model.w).sum()


def test_a_longer_training_gets_a_smaller_rate() -> None:
    """Compared with the best rate of whole trainings, of which there are enough for their mean to be known."""
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(COPIES, 2, generator=generator) for _ in range(100)]
    judge = [torch.zeros(COPIES, 2)]

    def suggested(**more: Any) -> SuggestedRate:
        model = Noisy()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        return suggest_lr(model, optimizer, noisy, batches, validation=judge, steps=100, **more)

    short, long = suggested(), suggested(training_steps=1000)
    assert short.tried == long.tried and short.trend is None
    assert long.trend is not None and -0.75 <= long.trend < -0.3
    assert long.rate == pytest.approx(short.rate * (1000 / 80) ** long.trend)
    assert "for 1,000 steps: the best rate is taken to go with their number to the power -0." in str(long)
    decaying = [suggested(schedule="decay", training_steps=steps) for steps in (100, 1600)]
    assert decaying[0].trend is None and decaying[1].rate == pytest.approx(decaying[0].rate / 2)
    assert suggested(training_steps=30).steps == 30

    def after_steps(rate: float, steps: int) -> float:
        """The loss expected: what is left of the start, and the variance that noise keeps up."""
        keep = 1 - rate * CURVATURES
        left = keep ** (2 * steps)
        variance = rate**2 * (1 - left) / (1 - keep**2)
        return float((0.5 * CURVATURES * (left + variance)).sum())

    rates = [1.05**k for k in range(-200, 10)]
    best = min(rates, key=lambda rate: after_steps(rate, 1000))
    assert abs(math.log(long.rate / best)) < abs(math.log(short.rate / best))


def looked(rate: float, steps: int) -> float:
    """The mean of five losses in the second half."""
    return sum(after(rate, round(steps * (1 + look / 5) / 2)) for look in range(1, 6)) / 5


@pytest.mark.parametrize("wrong", [1e-7, 1e-3, 1e3, 1e7])
def test_it_does_not_matter_where_the_rate_is(wrong: float) -> None:
    found = []
    for rate in (0.5, wrong):
        model, _, _ = made("sgd")
        optimizer = torch.optim.SGD(model.parameters(), rate)
        found.append(suggest_lr(model, optimizer, loss_fn, data(30), steps=40).rate)
    assert found[1] / found[0] == pytest.approx(1, abs=0.6)


def test_with_bnp_the_rate_is_another() -> None:
    """Inputs of unlike sizes: BNP allows a rate that is many times larger."""
    scales = torch.logspace(-1, 1, 12)
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(400, 12, generator=generator)
    x, y = z * scales + 5, (z @ torch.randn(12, generator=generator) > 0).long()
    batches = list(zip(x.split(8), y.split(8), strict=True))
    found = {}
    for method in ("plain", "bnp"):
        torch.manual_seed(0)
        model = nn.Linear(12, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        bnp = trimtab.BNP(model)
        if method == "plain":
            bnp.detach()
            found[method] = suggest_lr(model, optimizer, loss_fn, batches, steps=40)
            continue
        found["by hand"] = suggest_lr(model, optimizer, loss_fn, batches, steps=40, bnp=bnp)
        bnp.attach(optimizer)
        found[method] = suggest_lr(model, optimizer, loss_fn, batches, steps=40)
    assert found["by hand"] == found["bnp"]
    assert found["bnp"].rate > 3 * found["plain"].rate


class Landscape:
    """In the place of trials: losses that are a function of the rate alone."""

    def __init__(self, loss: Callable[[float], float], first_step: Callable[[float], float]) -> None:
        self.loss, self.first_step, self.cost = loss, first_step, 0.0

    def along_first_step(self) -> Callable[[float], float]:
        return self.first_step

    def train(self, factor: float, steps: int, looks: Sequence[int], schedule: Any) -> tuple[float, ...]:
        return tuple(self.loss(factor) for _ in looks)


def found_in(monkeypatch: pytest.MonkeyPatch, loss: Callable[..., float], first_step: Callable[..., float]) -> Any:
    model, optimizer, _ = made("sgd")
    monkeypatch.setattr("trimtab.doctor.learning_rate.Trials", lambda *_: Landscape(loss, first_step))
    return suggest_lr(model, optimizer, loss_fn, data(30), steps=40)


def bowl(rate: float) -> float:
    """The best rate is 0.2 times the optimizer's; from 1 on nothing is learned."""
    return 2.3 - 1 / (1 + math.log(rate / 0.2) ** 2) if rate < 1 else 30 / rate**0.8


def test_a_rate_that_raises_the_loss_leads_to_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the rates that train, the larger one may look better: a loss of 3.3 at 16, of 9.9 at 4, of 2.3 before."""
    found = found_in(monkeypatch, bowl, lambda length: 2.3 - length if length < 5 else 3.0)
    assert found.start == pytest.approx(4 * found.rate / found.factor) and bowl(16) < bowl(4)
    assert found.factor == pytest.approx(0.2, rel=0.1) and found.edge is None


def test_a_first_step_that_says_nothing_is_not_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch of the first step is another one than those that are compared on, which it may not help at all."""
    found = found_in(monkeypatch, bowl, lambda length: 2.3 + length - 1e-6 * (length < 1e-5))
    assert found.start == found.rate / found.factor
    assert found.factor == pytest.approx(0.2, rel=0.1)


def test_groups_with_different_rates_are_scaled_alike() -> None:
    model, _, _ = made("sgd")
    groups = [{"params": [p], "lr": 0.01 * (k + 1)} for k, p in enumerate(model.parameters())]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    suggested = suggest_lr(model, optimizer, loss_fn, data(20), steps=12)
    assert suggested.rates == pytest.approx([suggested.factor * group["lr"] for group in groups])
    assert any("groups have different rates, which were scaled alike: 0.01 →" in note for note in suggested.notes)
    suggested.apply(optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == list(suggested.rates)


def test_it_can_be_printed_and_written_down() -> None:
    model, optimizer, _ = made("sgd")
    suggested = suggest_lr(model, optimizer, loss_fn, data(40), steps=12, schedule="decay")
    text = str(suggested)
    assert text.startswith(f"Suggested learning rate, that decays: {suggested.rate:.3g}, ")
    assert all(f"{one.rate:.3g}" in text for one in suggested.tried)
    assert {one.steps for one in suggested.tried} == {6, 12}
    assert json.loads(json.dumps(suggested.to_dict()))["rate"] == suggested.rate
    assert suggested.cost < 1 + sum(one.steps + 16 / 3 for one in suggested.tried) + 24 * 16 / 3


@pytest.mark.parametrize(
    ("edge", "words", "falls"),
    [
        ("largest", "a larger one may be better", lambda model: -(1 + model.w.abs()).log().sum()),
        ("smallest", "a smaller one may be better", lambda model: -model.w.sum()),  # out of bounds at all rates tried
    ],
)
def test_the_edge_is_told(edge: str, words: str, falls: Callable[[nn.Module], Tensor]) -> None:
    """A loss that falls for ever has no best rate."""
    model = Quadratic()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    suggested = suggest_lr(model, optimizer, lambda model, batch: falls(model), [0, 1], steps=12)
    assert suggested.edge == edge and words in str(suggested)


def test_a_model_that_cannot_learn_is_told() -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    batches = [(torch.randn(4, 2), torch.zeros(4, dtype=torch.long)) for _ in range(40)]

    def contrary(model: nn.Module, batch: Batch) -> Tensor:
        """Training raises what is compared on."""
        loss = loss_fn(model, batch)
        return loss if torch.is_grad_enabled() else -loss

    suggested = suggest_lr(model, torch.optim.SGD(model.parameters(), 0.1), contrary, batches, steps=12)
    assert any(note.startswith("No rate lowered the held-out loss") for note in suggested.notes)


def test_batches_are_held_out_evenly_and_the_rest_trained_on() -> None:
    drawn = draw(range(20), 30, None)
    assert drawn.held_out == [3, 7, 11, 15, 19]
    assert sorted([*drawn.training, *drawn.held_out]) == list(range(20))
    many = draw(iter(range(1000)), 30, None)
    assert len(many.training) == 30 and len(many.held_out) == 16
    assert len(draw([torch.zeros(128, 3)] * 1000, 30, None).held_out) == 4
    own = draw(range(20), 30, [100, 101])
    assert own.training == list(range(20)) and own.held_out == [100, 101]
    assert len(draw([1, 2], 30, None).training) == 1


def endless() -> Iterator[Batch]:
    while True:
        yield from data(3)


def test_an_endless_loader_is_taken_from() -> None:
    model, optimizer, _ = made("sgd")
    assert math.isfinite(suggest_lr(model, optimizer, loss_fn, endless(), steps=12).rate)


def not_scalar(model: nn.Module, batch: Batch) -> Tensor:
    outputs: Tensor = model(batch[0])
    return outputs


def not_finite(model: nn.Module, batch: Batch) -> Tensor:
    return loss_fn(model, batch) * math.inf


def without_graph(model: nn.Module, batch: Batch) -> Tensor:
    return torch.zeros(())


ERRORS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "loss of many numbers": ({"loss_fn": not_scalar}, TypeError, "loss_fn must return a tensor of one number"),
    "loss that is infinite": ({"loss_fn": not_finite}, CannotMeasure, "The loss is inf"),
    "loss without gradient": ({"loss_fn": without_graph}, CannotMeasure, "depends on no parameter that is trained"),
    "torch's loss": ({"loss_fn": nn.CrossEntropyLoss()}, TypeError, "takes outputs and targets"),
    "no model": ({"model": 3}, TypeError, "model must be a torch.nn.Module, not 3"),
    "no batches": ({"batches": []}, ValueError, "batches has no batch in it"),
    "one batch": ({"batches": data(1)}, ValueError, "one batch only"),
    "no validation": ({"validation": []}, ValueError, "validation has no batch in it"),
    "a number for batches": ({"batches": 7}, TypeError, "batches must be a loader or a list of batches, not 7"),
    "no optimizer": ({"optimizer": 0.1}, TypeError, "optimizer must be an optimizer of torch.optim, not 0.1"),
    "schedule": ({"schedule": "cosine"}, ValueError, "schedule must be 'constant' or 'decay', not 'cosine'"),
    "steps": ({"steps": 5}, ValueError, "steps must be a whole number, 12 or larger, or None, not 5"),
    "training steps": ({"training_steps": 0.5}, ValueError, "training_steps must be a whole number"),
    "bnp": ({"bnp": True}, TypeError, "bnp must be a trimtab.BNP or None, not True"),
    "another model's": (
        {"optimizer": torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)},
        CannotMeasure,
        "holds none of the model's trained parameters",
    ),
    "a rate of 0": ({"rate": 0.0}, ValueError, "learning rate must be larger than 0"),
    "a closure": (
        {"kind": torch.optim.LBFGS},
        CannotMeasure,
        "LBFGS.step() needs a closure, so that its next update cannot be tried out",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_is_wrong_is_one_sentence(case: str) -> None:
    wrong, error, message = ERRORS[case]
    model, optimizer, _ = made("sgd")
    wrong = dict(wrong)
    if "rate" in wrong:
        optimizer = torch.optim.SGD(model.parameters(), wrong.pop("rate"))
    if "kind" in wrong:
        optimizer = wrong.pop("kind")(model.parameters())
    given: dict[str, Any] = {"model": model, "optimizer": optimizer, "loss_fn": loss_fn, "batches": data(20)} | wrong
    with untouched(model), pytest.raises(error) as raised:
        suggest_lr(given.pop("model"), given.pop("optimizer"), given.pop("loss_fn"), given.pop("batches"), **given)
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert str(raised.value).rstrip(".").count(". ") == 0


def test_it_is_at_the_front_of_the_library() -> None:
    assert trimtab.suggest_lr is suggest_lr
    assert SuggestedRate.__module__ == "trimtab.doctor.learning_rate"
