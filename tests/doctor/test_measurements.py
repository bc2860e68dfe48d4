"""What a look and a trial measure, beside the same computed by hand."""

import copy
import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trimtab
from tests.doctor.trainings import cross_entropy, some_steps
from trimtab import Doctor
from trimtab.bnp import bnps_attached_to
from trimtab.doctor import Cure
from trimtab.doctor.curves import best_multiple, gain_curve
from trimtab.doctor.pooling import joined
from trimtab.doctor.record import PATH, Facts, Record, Trial
from trimtab.doctor.schedule import Schedule
from trimtab.doctor.trend import trend
from trimtab.doctor.trying import GROWTH, MULTIPLES, Question, try_step
from trimtab.probes import CannotMeasure, split_batch
from trimtab.probes.surface import Surface


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3, bias=False))


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(7, 6, generator=generator) + 2, torch.randint(3, (7,), generator=generator)) for _ in range(count)
    ]


def looked_at(
    level: Any = "standard", *, steps: int = 6, every: int = 64, **options: Any
) -> tuple[Doctor, list[nn.Sequential], list[Any]]:
    """A doctor after some steps, and the model before each of them."""
    model, data = small(), batches(steps)
    optimizer = torch.optim.SGD(model.parameters(), **{"lr": 0.5, "momentum": 0.9, **options})
    doctor, before = Doctor(model, optimizer, cross_entropy, level=level, validation=data[:2], every=every), []
    for batch in data:
        before.append(copy.deepcopy(model))
        loss = cross_entropy(model, batch)
        optimizer.zero_grad()
        loss.backward()
        doctor.step(batch, loss)
        optimizer.step()
    return doctor, before, data


def between(start: nn.Module, end: nn.Module, share: float) -> nn.Module:
    """The model at a point on the line through both."""
    moved = copy.deepcopy(start)
    with torch.no_grad():
        for p, a, b in zip(moved.parameters(), start.parameters(), end.parameters(), strict=True):
            p.copy_(a + share * (b - a))
    return moved


def loss_of(model: nn.Module, batch: Any) -> float:
    return cross_entropy(copy.deepcopy(model), batch).item()


def test_a_look_is_what_a_loop_would_see() -> None:
    doctor, before, data = looked_at("light")
    (first, second) = doctor.record.looks
    assert (first.step, second.step, first.lr) == (0, 4, 0.5)
    model = copy.deepcopy(before[4])
    inputs, outputs = data[4][0], model[0](data[4][0]).detach()
    cross_entropy(model, data[4]).backward()
    layer = second.layers[0]
    assert layer.weight == pytest.approx(float(model[0].weight.detach().norm()), rel=1e-5)
    assert layer.gradient == pytest.approx(float(model[0].weight.grad.norm()), rel=1e-5)
    assert layer.update == pytest.approx(float((before[5][0].weight - before[4][0].weight).detach().norm()), rel=1e-4)
    assert layer.input_rms == pytest.approx(float(inputs.square().mean().sqrt()), rel=1e-5)
    assert layer.output_rms == pytest.approx(float(outputs.square().mean().sqrt()), rel=1e-5)
    assert layer.output_spread == pytest.approx(float(outputs.var(0, correction=0).mean().sqrt()), rel=1e-5)
    inner = F.relu(model[1](outputs)).detach().square().mean(0).sqrt()
    quarters = torch.nanquantile(torch.where(inner > 0, inner, math.nan), torch.tensor([0.25, 0.75]))
    assert second.layers[1].columns == pytest.approx(float(quarters[1] / quarters[0]), rel=1e-4)
    assert math.isnan(layer.columns)  # the network's inputs are judged elsewhere
    assert (layer.lr, second.layers[1].lr) == (0.5, 0.5)
    assert second.gradient == pytest.approx(math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters())))
    assert layer.input_spread == pytest.approx(float(inputs.var(0, correction=0).mean().sqrt()), rel=1e-5)
    no_gradient = (model[0].weight.grad == 0).double().mean()
    assert layer.zeros == pytest.approx(float(no_gradient)) and layer.rows == 5
    (seen,) = second.inputs
    deviations = inputs.std(0, correction=0)
    ends = torch.quantile(deviations, torch.tensor([0.1, 0.9])).tolist()
    assert seen.layer == "0" and [seen.smallest, seen.largest] == pytest.approx(ends, rel=1e-5)
    offset = inputs.mean(0).square().mean().sqrt() / deviations.square().mean().sqrt()
    assert seen.offset == pytest.approx(float(offset), rel=1e-5)
    assert seen.rms == pytest.approx(layer.input_rms, rel=1e-6)
    assert doctor.record.losses == [loss_of(m, b) for m, b in zip(before, data, strict=True)]


def test_the_batch_s_statistics_are_read_off_the_running_ones() -> None:
    doctor, before, data = looked_at("light")
    (norm,) = doctor.record.looks[1].norms
    x, running = before[4][0](data[4][0]), before[4][1]
    shift = ((x.mean(0) - running.running_mean).square() / (running.running_var + running.eps)).mean()
    assert norm.shift == pytest.approx(shift.item(), rel=1e-3)
    assert norm.ratio == pytest.approx((x.var(0) / (running.running_var + running.eps)).median().item(), rel=1e-3)
    assert norm.values == 7


def test_a_look_at_convolutions_is_by_channel() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3, groups=2), nn.Flatten(), nn.Linear(24, 3))
    batch = torch.randn(5, 3, 6, 6) * torch.tensor([1.0, 2.0, 4.0])[:, None, None] + 1, torch.tensor([0, 1, 2, 0, 1])
    before, optimizer = copy.deepcopy(model), torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = Doctor(model, optimizer, cross_entropy)
    for _ in range(2):
        optimizer.zero_grad()
        loss = cross_entropy(model, batch)
        loss.backward()
        doctor.step(batch, loss)
        optimizer.step()
    (look,) = doctor.record.looks
    (seen,) = look.inputs
    deviations = batch[0].std((0, 2, 3), correction=0)
    ends = torch.quantile(deviations, torch.tensor([0.1, 0.9])).tolist()
    assert [seen.smallest, seen.largest] == pytest.approx(ends, rel=1e-5)
    hidden = F.relu(before[0](batch[0])).detach()
    quarters = torch.quantile(hidden.square().mean((0, 2, 3)).sqrt(), torch.tensor([0.25, 0.75]))
    assert look.layers[1].columns == pytest.approx(float(quarters[1] / quarters[0]), rel=1e-5)
    assert look.layers[1].input_rms == pytest.approx(float(hidden.square().mean().sqrt()), rel=1e-5)
    assert look.layers[1].input_spread == pytest.approx(float(hidden.var(0, correction=0).mean().sqrt()), rel=1e-5)
    assert [layer.rows for layer in look.layers] == [4, 6, 3]


def test_a_trial_is_the_step_that_was_taken() -> None:
    doctor, before, data = looked_at(weight_decay=0.1)
    (trial,) = doctor.record.trials
    start, end = before[0], before[1]
    assert trial.multiples == MULTIPLES
    assert trial.loss == pytest.approx(loss_of(start, data[0]), rel=1e-5)
    assert trial.after == pytest.approx(loss_of(between(start, end, 1.0), data[0]), rel=1e-4)
    assert trial.other == pytest.approx(loss_of(start, data[1]), rel=1e-5)
    assert trial.others == pytest.approx([loss_of(between(start, end, s), data[1]) for s in MULTIPLES], rel=1e-3)
    model = copy.deepcopy(start)
    cross_entropy(model, data[0]).backward()
    pairs = list(zip(model.parameters(), end.parameters(), strict=True))
    assert trial.promised == pytest.approx(-sum((p.grad * (q - p)).sum().item() for p, q in pairs), rel=1e-4)
    taken = 0.5 * 0.1 * -sum((p.grad * p).sum().item() for p, _ in pairs)
    assert trial.undone == pytest.approx(taken / (trial.promised + taken), rel=1e-3)
    larger = between(start, start, 0.0)
    with torch.no_grad():
        for p in larger.parameters():
            p.mul_(1 + GROWTH)
    assert trial.grown == pytest.approx(loss_of(larger, data[1]), rel=1e-4)
    still = copy.deepcopy(start).eval()  # running statistics have moved once by the step's own forward
    still[1].load_state_dict({**still[1].state_dict(), **_statistics(end)})
    assert trial.validation == pytest.approx(sum(loss_of(still, batch) for batch in data[:2]) / 2, rel=0.2)


def test_a_way_is_gone_on_from_where_the_training_is() -> None:
    doctor, before, data = looked_at(lr=0.01, steps=102, every=20)
    paths = {trial.step: trial.path for trial in doctor.record.trials}
    assert [step for step in paths if paths[step]] == [100]  # the ways from 0 to 16, to 20, 40 and 80 are too short
    for share, loss in zip(PATH, paths[100], strict=True):
        moved = copy.deepcopy(before[101])
        with torch.no_grad():
            for p, a, b in zip(moved.parameters(), before[40].parameters(), before[100].parameters(), strict=True):
                p.add_(share * (b - a))
        assert loss == pytest.approx(loss_of(moved, data[101]), rel=1e-4)


def test_what_is_known_from_the_first_batch() -> None:
    doctor, _, _ = looked_at(weight_decay=0.1)
    facts = doctor.record.facts
    assert facts == Facts(optimizer="SGD", weight_decay=0.1, batch_size=7, batchnorms=("1",), normalized=True)


def test_what_is_promised_is_no_product_in_half_precision() -> None:
    """A gradient times a step of that rate is below the smallest number that half precision has."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3).half()
    loss_fn = lambda model, batch: model(batch).float().square().mean()  # noqa: E731
    x = torch.randn(8, 4).half()
    step = {name: torch.full_like(p, 1e-6) for name, p in model.named_parameters()}
    trial = try_step(model, loss_fn, step, x, x, step=0, lr=1e-6, question=Question())
    surface = Surface(model, loss_fn, x)
    _, gradient = surface.gradient(surface.moved(step, -1.0))
    promised = -sum(float((gradient[name].double() * step[name].double()).sum()) for name in step)
    assert trial.promised == pytest.approx(promised, rel=1e-6)
    assert not all(bool((gradient[name] * step[name]).count_nonzero() == step[name].numel()) for name in step)


def _statistics(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model[1].state_dict().items() if name.startswith("running")}


def test_dead_outputs_are_those_without_any_gradient() -> None:
    model, data = small(), batches(40)
    with torch.no_grad():
        model[1].bias[:2] = -100.0
        model[1].bias[2] = 100.0
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    doctor = Doctor(model, optimizer, cross_entropy)
    for batch in data:
        loss = cross_entropy(model, batch)
        optimizer.zero_grad()
        loss.backward()
        doctor.step(batch, loss)
        optimizer.step()
    assert doctor.record.looks[-1].layers[0].dead == pytest.approx(0.4)
    assert doctor.record.looks[2].layers[0].dead == 0  # three looks do not tell
    assert doctor.record.looks[-1].layers[1].dead == 0


@pytest.mark.parametrize("batch", [(torch.arange(12.0).view(6, 2), torch.arange(6)), {"x": torch.arange(6), "n": 3}])
def test_joined_batches_are_cut_apart_again(batch: Any) -> None:
    again = joined(split_batch(batch, 3))
    values = batch.values() if isinstance(batch, dict) else batch
    for a, b in zip(values, again.values() if isinstance(again, dict) else again, strict=True):
        assert torch.equal(a, b) if isinstance(a, Tensor) else a == b
    with pytest.raises(CannotMeasure, match="cannot be joined"):
        joined([torch.zeros(2, 3), torch.zeros(2, 4)])
    with pytest.raises(CannotMeasure, match="no tensor of samples"):
        joined([3, 4])


def test_when_what_is_due() -> None:
    light, standard = Schedule("light"), Schedule("standard")
    assert [step for step in range(130) if light.look(step)] == [0, 4, 8, 16, 32, 64, 96, 128]
    assert [step for step in range(960, 1160) if light.look(step)] == [960, 992, 1024, 1088, 1152]
    assert [step for step in range(60, 80) if Schedule("light", 4).look(step)] == [60, 62, 64, 68, 72, 76]
    assert not any(light.trial(step) for step in range(130))
    assert [step for step in range(130) if standard.trial(step)] == [0, 16, 64, 128]
    hooked = [step for step in range(2200) if standard.look(step) and standard.hooks(step)]
    assert hooked == [0, 4, 8, 16, 256, 512, 768, 1024, 1536, 2048]
    due = {trial: standard.probes(trial) for trial in range(150) if standard.probes(trial)}
    assert [trial for trial, names in due.items() if names == ("noise",)] == [7, 39, 71, 103, 135]
    assert [trial for trial, names in due.items() if names == ("spectrum",)] == [15, 143] and len(due) == 7


def trial_with(others: tuple[float, ...]) -> Trial:
    return Trial(step=64, lr=0.1, loss=1.0, after=0.9, promised=0.1, multiples=MULTIPLES, others=others, other=2.0)


def test_the_gain_of_a_multiple_is_the_median_over_trials() -> None:
    usual = (1.9, 1.8, 1.6, 1.7, math.inf)
    trials = [trial_with(usual), trial_with(usual), trial_with((9.0,) * 5)]
    assert gain_curve(trials)[:3] == pytest.approx([0.05, 0.1, 0.2])
    assert gain_curve(trials)[-1] == -math.inf
    assert best_multiple(trials) == 1.0
    assert math.isnan(best_multiple([]))


def test_a_trend_in_numbers() -> None:
    falling = trend(Record(losses=[2.0 * 0.99**step for step in range(300)], facts=Facts(batch_size=32)))
    assert falling.falls and not falling.stuck and not falling.leapt
    assert falling.recent == pytest.approx(2 * 0.99**285, rel=0.02)
    leapt = trend(Record(losses=[2.3, 2.2, 2.3, 9.0, *[2.3] * 100], facts=Facts(batch_size=32)))
    assert leapt.leapt and leapt.stuck
    noisy = trend(Record(losses=[2.3, 2.2, 2.3, *[2.0, 3.0] * 100], facts=Facts(batch_size=2)))
    assert not noisy.leapt  # the same losses in batches of 2 are noise
    assert trend(Record(losses=[1.0, math.nan, 1.0])).broken == 1
    assert math.isnan(trend(Record()).start)


def test_cures_change_what_they_say() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, weight_decay=0.1)
    Cure(setting="lr", factor=0.1, sentence="").apply(model, optimizer)
    Cure(setting="weight_decay", factor=0.5, sentence="").apply(model, optimizer)
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [(0.05, 0.05)]
    Cure(setting="lr", factor=0.1, layer="3", sentence="").apply(model, optimizer)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates[id(model[3].weight)] == pytest.approx(0.005) and rates[id(model[0].weight)] == 0.05
    assert len(rates) == len(list(model.parameters()))
    before = model[0].weight.clone()
    Cure(setting="init", factor=2.0, layer="0", sentence="").apply(model, optimizer)
    assert torch.equal(model[0].weight, 2 * before)
    others = [p.clone() for p in (*model[1].parameters(), *model[3].parameters())]
    torch.manual_seed(3)
    Cure(setting="init", value="default", layer="0", sentence="").apply(model, optimizer)
    torch.manual_seed(3)
    assert torch.equal(model[0].weight, nn.Linear(6, 5).weight)
    assert all(map(torch.equal, others, (*model[1].parameters(), *model[3].parameters())))
    Cure(setting="statistics", factor=0.3, sentence="").apply(model, optimizer)
    assert model[1].momentum == 0.3
    Cure(setting="bnp", sentence="").apply(model, optimizer)
    (bnp,) = bnps_attached_to(optimizer)
    assert isinstance(bnp, trimtab.BNP)
    F.cross_entropy(model(batches(1)[0][0]), batches(1)[0][1]).backward()
    optimizer.step()


def test_the_offset_of_the_inputs_is_not_known_of_one_sample() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    doctor = Doctor(model, optimizer, cross_entropy, every=4)
    for _ in range(60):
        batch = torch.randn(1, 6), torch.randint(3, (1,))
        loss = cross_entropy(model, batch)
        optimizer.zero_grad()
        loss.backward()
        doctor.step(batch, loss)
        optimizer.step()
    (inputs,) = doctor.record.looks[0].inputs
    assert 0.1 < inputs.rms < 3 and math.isnan(inputs.offset)
    assert "inputs-badly-scaled" not in [finding.name for finding in doctor.diagnosis().findings]


def test_a_trial_within_an_autocast_is_one_with_the_autocast_in_the_loss() -> None:
    """Which keeps copies of parameters in half precision, though these move from point to point."""

    def autocast() -> torch.autocast:
        return torch.autocast("cpu", dtype=torch.bfloat16)

    def in_half(model: nn.Module, batch: Any) -> Tensor:
        with autocast():
            return cross_entropy(model, batch)

    def trial(loss_fn: Any, around: Any) -> Trial:
        model, data = small(), batches(2)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        doctor = Doctor(model, optimizer, loss_fn, level="standard")
        for batch in data:
            with around():
                loss = loss_fn(model, batch)
                optimizer.zero_grad()
                loss.backward()
                doctor.step(batch, loss)
                assert torch.is_autocast_cache_enabled()
            optimizer.step()
        (found,) = doctor.record.trials
        return found

    within, inside = trial(cross_entropy, autocast), trial(in_half, nullcontext)
    assert len({*within.others}) == len(MULTIPLES)
    assert within.others == pytest.approx(inside.others, rel=1e-3)
    assert within.loss == pytest.approx(inside.loss, rel=1e-3)


def test_losses_of_several_types_stay_in_order() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = Doctor(model, optimizer, cross_entropy)
    for i in range(9):
        some_steps(
            doctor,
            model,
            optimizer,
            batches(1),
            loss=torch.tensor(float(i), dtype=(torch.float32, torch.float64)[i % 2]),
        )
    assert doctor.record.losses == list(range(9))


def test_a_loss_without_a_number_is_a_problem_once() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = Doctor(model, optimizer, cross_entropy)
    some_steps(doctor, model, optimizer, batches(7))
    assert len(doctor.record.losses) == 7
    some_steps(doctor, model, optimizer, batches(1), loss=torch.empty((), device="meta"))
    assert [len(doctor.record.losses) for _ in range(3)] == [7] * 3
    assert [problem.what for problem in doctor.record.problems] == ["loss"]


def test_the_momentum_of_a_look_is_that_of_its_forward() -> None:
    found = []
    for later in (0.1, 0.7, None):
        model: Any = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        doctor = Doctor(model, optimizer, cross_entropy)
        some_steps(doctor, model, optimizer, batches(1))
        model[1].momentum = later
        some_steps(doctor, model, optimizer, batches(2))
        assert not doctor.record.problems
        found.append(doctor.record.looks[0].norms)
    assert found[0] == found[1] == found[2]


def test_a_momentum_that_is_a_property() -> None:
    class Norm(nn.BatchNorm1d):
        momentum = property(lambda self: 0.2, lambda self, value: None)  # type: ignore[assignment]

    model = small()
    model[1] = Norm(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = Doctor(model, optimizer, cross_entropy)
    some_steps(doctor, model, optimizer, batches(2))
    assert doctor.record.facts.batchnorms == ("1",) and len(doctor.record.looks[0].norms) == 1


def test_losses_of_one_trial_are_of_one_state_of_the_model() -> None:
    """What a forward leaves in lists, dictionaries and tensors of a module is not there in the next one."""

    class Counting(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 3)
            self.calls, self.by_name, self.total = [0], {"calls": 0}, torch.zeros(())

        def forward(self, x: Tensor) -> Tensor:
            self.calls[0] += 1
            self.by_name["calls"] += 1
            self.total += 1
            seen.append((self.calls[0], self.by_name["calls"], int(self.total)))
            return super().forward(x)

    seen: list[tuple[int, int, int]] = []
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    doctor = Doctor(model, optimizer, cross_entropy, level="standard", validation=batches(2))
    some_steps(doctor, model, optimizer, batches(3))
    trial = [seen[0], seen[1], *[(3, 3, 3)] * (len(seen) - 3), (3, 3, 3)]
    assert len(doctor.record.trials) == 1 and seen == trial and len(seen) > 12


def test_a_step_that_moved_nothing_is_not_tried() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    calls = 0

    def counted(model: nn.Module, batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        return cross_entropy(model, batch)

    doctor = Doctor(model, optimizer, counted, level="standard", validation=batches(2))
    some_steps(doctor, model, optimizer, batches(3))
    assert calls == 0 and [problem.what for problem in doctor.record.problems] == ["trial"]
