"""`predict`: what is measured and what is predicted, and that these are not mixed up."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trimtab import predict
from trimtab.prediction import measure_lambda_max
from trimtab.probes import CannotMeasure
from trimtab.theory.from_model import mean_field_prediction


def network(seed: int, width: int = 500, layers: int = 2, outputs: int = 10, norm: bool = True) -> nn.Sequential:
    torch.manual_seed(seed)
    parts: list[nn.Module] = []
    before = 64
    for _ in range(layers):
        parts += [nn.Linear(before, width), *([nn.BatchNorm1d(width)] if norm else []), nn.ReLU()]
        before = width
    model = nn.Sequential(*parts, nn.Linear(before, outputs))
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=math.sqrt(2 / layer.in_features))
            nn.init.normal_(layer.bias, std=math.sqrt(0.5))
    return model


def data(seed: int, count: int = 128) -> Tensor:
    return torch.randn(count, 64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
@pytest.mark.parametrize(
    ("about", "statistics"),
    [
        ({}, "batch"),
        ({"norm": False}, "batch"),
        pytest.param({}, "frozen", marks=pytest.mark.slow),
        pytest.param({"width": 100}, "batch", marks=pytest.mark.slow),
        pytest.param({"layers": 4}, "batch", marks=pytest.mark.slow),
    ],
)
def test_all_outputs_by_mean_field(about: dict[str, Any], statistics: Any, loss: Any) -> None:
    """The means over draws; those of cross-entropy differ by a tenth from draw to draw."""
    ratios = []
    for seed in range(6):
        found = predict(network(seed, **about), (64,), inputs=data(seed), loss=loss, statistics=statistics)
        assert found.predicted is not None and found.formulas_unseen == ()
        ratios.append(found.predicted / found.lambda_max)
    assert math.fsum(ratios) / len(ratios) == pytest.approx(1, abs=0.12)


def test_the_coupling_of_outputs_is_not_nothing() -> None:
    model = network(0, width=100)
    one, every = (predict(model, (64,), outputs=each, statistics="frozen") for each in ("one", "all"))  # type: ignore[arg-type]
    assert every.lambda_max > 1.2 * one.lambda_max
    assert every.predicted is not None and one.predicted is not None and every.predicted > 1.2 * one.predicted


@pytest.mark.usefixtures("few_draws")
def test_many_classes_are_named() -> None:
    """Some classes are likelier than others in a drawn network, and which decides."""
    model = network(0, outputs=40)
    assert "from draw to draw" in predict(model, (64,), loss="cross_entropy").formulas_unseen[0]
    assert predict(model, (64,)).formulas_unseen == ()


def test_one_output_with_frozen_statistics_is_the_papers() -> None:
    model = network(0)
    ours = predict(model, (64,), outputs="one", statistics="frozen", momentum=0.9)
    theirs = mean_field_prediction(model, (64,), momentum=0.9)
    assert ours.predicted == theirs.lambda_max
    assert ours.lambda_max == pytest.approx(theirs.lambda_max, rel=0.05)  # drawn networks against a formula
    assert ours.max_learning_rate == 3.8 / ours.lambda_max and theirs.max_learning_rate == 3.8 / theirs.lambda_max


def test_what_decides_between_measuring_and_predicting() -> None:
    model, x = network(0, width=50), data(0, 32)
    assert predict(model, (64,)).kind == "predicted"
    assert predict(model, (64,), inputs=x, measure=False).kind == "predicted"
    drawn = predict(model, (64,), measure=True)
    assert drawn.kind == "measured" and drawn.measurement is not None and drawn.measurement.samples == 64
    assert "white noise" in drawn.notes[0]
    found = predict(model, (64,), inputs=x)
    measured = measure_lambda_max(model, x)
    assert found.kind == "measured" and found.lambda_max == measured.lambda_max
    assert found.measurement == measured


def test_nothing_of_the_model_is_changed() -> None:
    model, x = network(0, width=50), data(0, 32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    predict(model, (64,), inputs=x, loss="cross_entropy")
    assert torch.equal(torch.get_rng_state(), state) and model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_that_cannot_be_traced_is_measured() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 30), nn.Linear(30, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            return self.last(h.relu() if h.sum() > 0 else h.tanh())  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model = Branching()
    found = predict(model, (4,), inputs=torch.randn(16, 4), samples=1000)
    assert found.kind == "measured" and found.predicted is None and found.terms == {}
    assert "cannot be traced" in found.formulas_unseen[0]
    assert "each of the 16 measured samples" in found.unseen[0]
    assert any("not extrapolated" in note for note in found.notes)
    drawn = predict(model, (4,))
    assert drawn.kind == "predicted" and drawn.predicted is None and drawn.drawn is not None


def test_a_loss_of_ones_own() -> None:
    model, x, y = network(0, width=50), data(0, 32), torch.randint(10, (32,))
    ours = predict(model, (64,), inputs=x, targets=y, loss=nn.functional.cross_entropy)
    theirs = predict(model, (64,), inputs=x, loss="cross_entropy")
    assert ours.lambda_max == pytest.approx(theirs.lambda_max, rel=0.02)
    assert ours.predicted is None and ours.loss == "cross_entropy"


def test_it_is_extrapolated_to_the_size_of_the_data_set() -> None:
    """What one sample adds by itself counts less, the more of them there are."""
    model = network(0, norm=False)
    found = predict(model, (64,), inputs=data(0, 32), samples=512)
    whole = measure_lambda_max(model, data(0, 512))
    assert found.measurement is not None
    assert found.lambda_max < found.measurement.lambda_max
    assert (
        abs(found.lambda_max / whole.lambda_max - 1) < abs(found.measurement.lambda_max / whole.lambda_max - 1) + 0.05
    )
    assert found.notes == ("Extrapolated from 32 to 512 samples by mean field.",)


def test_an_extrapolation_that_may_be_wrong_is_said() -> None:
    """Few of the inputs have most of the norm: which of them are measured decides (1.4 to 1.9 of what all 512 have)."""
    model, x = network(0, width=50), data(0, 512) * data(1, 512)[:, :1].exp()
    few = predict(model, (64,), inputs=x[:32], samples=512)
    assert few.measurement is not None and few.measurement.uncertainty > 0.3
    assert "measure it on more inputs" in few.unseen[0] and "Not to be relied on: What each of the 32" in str(few)
    assert predict(model, (64,), inputs=x[:32]).unseen == ()
    white = predict(network(0), (64,), inputs=data(0), samples=512)
    assert white.unseen == () and "% by the choice of those measured)" in str(white)


def test_mean_field_that_is_not_close_does_not_move_what_is_measured_unsaid() -> None:
    model = nn.Sequential(nn.Linear(64, 50), nn.BatchNorm1d(50), nn.Tanh(), nn.Linear(50, 4))
    found = predict(model, (64,), inputs=data(0, 16), samples=100_000)
    assert any("formulas, which are not close to what is measured" in sentence for sentence in found.unseen)


def test_inputs_that_batches_leave_over_are_not_extrapolated_to() -> None:
    """Mean field would move it by 8 %, where other inputs of the 100 give the same."""
    model, x = network(0, width=50), data(0, 100)
    for samples in (None, 100):
        found = predict(model, (64,), inputs=x, batch_size=64, samples=samples)
        assert found.measurement is not None and found.lambda_max == found.measurement.lambda_max
        assert found.notes == ("Measured on 64 of 100 inputs: whole batches of 64.",)


def test_fewer_samples_are_measured_than_would_take_too_long_and_that_is_said() -> None:
    model, x = network(0, width=50), data(0, 64)
    found = measure_lambda_max(model, x, memory=2 * 16 * 64 * 50)
    assert found.samples < 64 and found.batch_size < found.samples
    assert f"Measured on {found.samples} of 64 inputs" in found.note and "GiB" in found.note
    hurried = measure_lambda_max(model, x, batch_size=8, seconds=1e-9)
    assert hurried.samples < 64 and "s, by an estimate" in hurried.note


class NotALayer(nn.Module):
    """BatchNorm as a function, or written by hand."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.first, self.last, self.by_hand = nn.Linear(64, 80), nn.Linear(80, 3), by_hand

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.by_hand:
            h = (h - h.mean(0)) / (h.var(0, correction=0) + 1e-5).sqrt()
        else:
            h = nn.functional.batch_norm(h, None, None, training=True)
        return self.last(h.relu())  # type: ignore[no-any-return]


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("inputs", [None, data(0, 32)])
def test_batchnorm_that_is_no_layer_is_seen(by_hand: bool, inputs: Tensor | None) -> None:
    torch.manual_seed(0)
    model = NotALayer(by_hand)
    found = predict(model, (64,), inputs=inputs, samples=32)
    assert found.batch_norm and "and BatchNorm in train mode" in str(found)
    with pytest.raises(ValueError, match=r"statistics='frozen' is for BatchNorm layers: the model mixes samples"):
        predict(model, (64,), inputs=inputs, statistics="frozen")
    with pytest.raises(ValueError, match="batch_size and samples must be 2 or larger"):
        predict(model, (64,), inputs=inputs, batch_size=1)
    if not by_hand:
        layer = nn.Sequential(model.first, nn.BatchNorm1d(80, affine=False), nn.ReLU(), model.last)
        assert found.predicted == pytest.approx(predict(layer, (64,), inputs=inputs, samples=32).predicted)


def test_batchnorm_that_is_in_evaluation_mode_in_training_is_none() -> None:
    model = network(0, width=50)
    for layer in model:
        layer.train(not isinstance(layer, nn.BatchNorm1d))
    assert "and no BatchNorm" in str(predict(model, (64,), inputs=data(0, 32), batch_size=1))


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets)


@pytest.mark.parametrize(
    ("loss", "targets", "sentence"),
    [
        (cross_entropy, torch.full((32,), 12), "loss must return one number.*outputs .*, 10.* and targets .*Target 12"),
        (cross_entropy, torch.zeros(32, dtype=torch.int32), "loss must return one number.*int32.*: expected target"),
        (nn.CrossEntropyLoss, torch.zeros(32, dtype=torch.long), "loss must return one number"),
        (lambda outputs: outputs.mean(), torch.zeros(32), "loss must return one number.*2 were given"),
        (nn.CrossEntropyLoss(reduction="sum"), torch.zeros(32, dtype=torch.long), "loss must return a mean over samp"),
        (
            lambda outputs, targets: outputs - targets,
            torch.zeros(32, 10),
            "loss must .*: it must return a tensor of one",
        ),
        (lambda outputs, targets: 3.0, torch.zeros(32), "loss must .*: it must return a tensor of one"),
    ],
)
def test_a_loss_that_does_not_fit_is_named(loss: Any, targets: Tensor, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        predict(network(0, width=20), (64,), inputs=data(0, 32), targets=targets, loss=loss)


def test_targets_of_which_the_first_are_ignored() -> None:
    """What it takes is tried on the first inputs, where such a loss is 0/0."""
    x, targets = data(0, 32), torch.arange(32) % 10
    targets[:16] = -100
    found = predict(network(0, width=20), (64,), inputs=x, targets=targets, loss=cross_entropy)
    assert found.lambda_max > 0


@pytest.mark.parametrize("loss", [nn.functional.l1_loss, lambda outputs, targets: -(outputs - targets).square().mean()])
def test_a_loss_without_upward_curvature_is_said(loss: Any) -> None:
    found = predict(network(0, width=20), (64,), inputs=data(0, 32), targets=torch.ones(32, 10), loss=loss)
    assert found.max_learning_rate == math.inf and "no learning rate follows" in str(found)


def test_outputs_at_positions_are_named() -> None:
    model = nn.Sequential(nn.Conv2d(2, 100, 3), nn.ReLU(), nn.Conv2d(100, 3, 1))
    assert "outputs have 36 positions" in predict(model, (2, 8, 8)).formulas_unseen[0]
    assert predict(model, (2, 8, 8), outputs="one").formulas_unseen == ()


def test_it_says_what_it_is_for() -> None:
    text = str(predict(network(0, width=50), (64,), inputs=data(0, 32), loss="cross_entropy", momentum=0.9))
    assert text.startswith("For cross-entropy, all outputs, train mode, momentum 0.9 (λ_max is the largest")
    for part in ("λ_max, measured on 32 samples", "by mean field's formulas", "of the measured", "rate, measured"):
        assert part in text
    assert "measured" not in str(predict(network(0, width=50), (64,), statistics="frozen")).partition("\n")[0]


def test_whole_numbers_are_inputs_too() -> None:
    """Of an embedding: it is measured, and mean field says that it has nothing to say."""
    model = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(32, 3))
    x = torch.randint(20, (32, 4))
    found = predict(model, (4,), inputs=x)
    assert found.kind == "measured" and found.lambda_max > 0 and found.predicted is None
    assert "real numbers" in found.formulas_unseen[0]


@pytest.mark.parametrize(
    ("inputs", "about", "sentence"),
    [
        (torch.randint(5, (8, 64)), {}, r"inputs: the model does not take \(8, 64\), torch.int64"),
        (torch.randn(8, 9), {}, r"inputs: the model does not take \(8, 9\)"),
        (torch.randn(8, 64), {"batch_size": 1}, "batch_size and samples must be 2 or larger"),
    ],
)
def test_inputs_that_the_model_does_not_take(inputs: Tensor, about: Any, sentence: str) -> None:
    model = nn.Sequential(nn.Linear(64, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 3))
    with pytest.raises(ValueError, match=sentence):
        predict(model, inputs.shape[1:], inputs=inputs, **about)


def test_without_derivatives_there_is_a_sentence() -> None:
    class Detached(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach()

    with torch.inference_mode(), pytest.raises(ValueError, match="inference_mode"):
        predict(nn.Linear(4, 3), (4,))
    with pytest.raises(CannotMeasure, match="No gradient reaches"):
        predict(Detached(4, 3), (4,), measure=True)
    with pytest.raises(ValueError, match="constant for a model with one output"):
        predict(nn.Linear(4, 1), (4,), loss="cross_entropy", measure=True)
