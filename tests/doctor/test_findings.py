"""Trainings that are ill, beside their healthy twins: the illness does harm, and is found; the twin has no finding."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

import trimtab
from tests.doctor.trainings import Trained, cnn, mlp, train
from trimtab.doctor import NAMES, Finding
from trimtab.doctor.rules import RULES

Model = Callable[[], nn.Module]
TUNED = partial(SGD, lr=0.3)


def run(model: Model, optimizer: Any = TUNED, *, prepare: Any = None, bnp: bool = False, **more: Any) -> Trained:
    torch.manual_seed(0)
    made = model()
    if prepare is not None:
        prepare(made)
    chosen = optimizer(made.parameters())
    if bnp:
        trimtab.BNP(made).attach(chosen)
    return train(made, chosen, **more)


def found(trained: Trained, name: str) -> Finding:
    assert name in trained.names, trained.diagnosis
    return next(finding for finding in trained.diagnosis.findings if finding.name == name)


def scaled(place: int, factor: float) -> Callable[[nn.Module], None]:
    """Multiply the weights of one layer."""

    def scale(model: nn.Module) -> None:
        layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
        with torch.no_grad():
            layers[place].weight.mul_(factor)

    return scale


def silenced(place: int) -> Callable[[nn.Module], None]:
    """Let ReLU put out 0 after one layer, whatever comes."""

    def silence(model: nn.Module) -> None:
        layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
        with torch.no_grad():
            layers[place].bias.fill_(-10.0)

    return silence


def slow_statistics(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.momentum = 1e-3


def shuffled(labels: Tensor) -> Tensor:
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(3))]


def in_float16(model: nn.Module, batch: Any) -> Tensor:
    """A loss whose gradients are below the smallest numbers of float16."""
    with torch.autocast("cpu", torch.float16):
        output = model(batch[0])
    return 1e-7 * F.cross_entropy(output.float(), batch[1])


# name, where, how much worse it ends at least, the ill training, its twin
bn, gn = nn.BatchNorm1d, partial(nn.GroupNorm, 4)
ILL: list[tuple[str, str | None, Callable[[], Trained], Callable[[], Trained]]] = [
    ("learning-rate-too-high", None, lambda: run(mlp, partial(SGD, lr=3.0)), lambda: run(mlp)),
    ("learning-rate-too-high", None, lambda: run(mlp, partial(SGD, lr=0.9, momentum=0.9)), lambda: run(mlp)),
    ("learning-rate-too-high", None, lambda: run(cnn, partial(SGD, lr=15.0)), lambda: run(cnn)),
    ("learning-rate-too-low", None, lambda: run(mlp, partial(SGD, lr=0.01)), lambda: run(mlp)),
    ("learning-rate-too-low", None, lambda: run(mlp, partial(Adam, lr=3e-5)), lambda: run(mlp, partial(Adam, lr=1e-3))),
    ("learning-rate-too-low", None, lambda: run(lambda: mlp(bn), partial(SGD, lr=0.01)), lambda: run(lambda: mlp(bn))),
    (
        "batchnorm-batch-too-small",
        None,
        lambda: run(lambda: mlp(bn, depth=4), partial(SGD, lr=0.03), batch_size=2, steps=400),
        lambda: run(lambda: mlp(nn.LayerNorm, depth=4), partial(SGD, lr=0.03), batch_size=2, steps=800),
    ),
    ("train-eval-gap", None, lambda: run(lambda: mlp(bn), prepare=slow_statistics), lambda: run(lambda: mlp(bn))),
    ("inputs-badly-scaled", "1", lambda: run(mlp, inputs=lambda x: 100 * x), lambda: run(mlp)),
    ("inputs-badly-scaled", "1", lambda: run(mlp, inputs=lambda x: x / 100), lambda: run(mlp)),
    ("inputs-badly-scaled", "1", lambda: run(mlp, partial(SGD, lr=0.1), inputs=lambda x: x + 20), lambda: run(mlp)),
    ("dead-units", None, lambda: run(cnn, prepare=silenced(1)), lambda: run(cnn)),
    ("exploding-layer", "3", lambda: run(mlp, prepare=scaled(1, 30.0)), lambda: run(mlp)),
    ("vanishing-layer", None, lambda: run(lambda: mlp(depth=6, width=50), partial(SGD, lr=0.1)), lambda: run(mlp)),
    ("decay-too-strong", None, lambda: run(mlp, partial(SGD, lr=0.3, weight_decay=0.1)), lambda: run(mlp)),
    ("decay-too-strong", None, lambda: run(cnn, partial(SGD, lr=0.3, weight_decay=0.3)), lambda: run(cnn)),
    ("precision-underflow", None, lambda: run(mlp, partial(SGD, lr=0.3e7), loss_fn=in_float16), lambda: run(mlp)),
    (
        "labels-not-learnable",
        None,
        lambda: run(lambda: mlp(bn), labels=shuffled, validate=True),
        lambda: run(lambda: mlp(bn), validate=True),
    ),
]


@pytest.mark.parametrize(("name", "layer", "ill", "twin"), ILL, ids=[f"{case[0]}-{n}" for n, case in enumerate(ILL)])
def test_an_illness_that_does_harm_is_found(
    name: str, layer: str | None, ill: Callable[[], Trained], twin: Callable[[], Trained]
) -> None:
    worse, better = ill(), twin()
    assert not worse.accuracy >= better.accuracy - 0.01  # the harm
    finding = found(worse, name)
    assert worse.names[0] == name, worse.diagnosis
    if layer is not None:
        assert finding.layer == layer
    assert finding.evidence
    assert 0 < finding.certainty <= 1
    assert finding.sentence.endswith(".") and finding.advice.endswith(".")
    assert better.names == [], better.diagnosis


def test_a_layer_with_a_rate_of_its_own_is_found() -> None:
    torch.manual_seed(0)
    model = mlp()
    first = list(model[1].parameters())
    others = [p for p in model.parameters() if all(p is not each for each in first)]
    trained = train(model, SGD([{"params": first, "lr": 30.0}, {"params": others}], lr=0.1))
    assert trained.accuracy < 0.9
    finding = found(trained, "step-out-of-proportion")
    assert (trained.names[0], finding.layer) == ("step-out-of-proportion", "1")
    finding.cure.apply(model, optimizer := SGD([{"params": first, "lr": 30.0}, {"params": others}], lr=0.1))
    rates = sorted(group["lr"] for group in optimizer.param_groups)
    assert rates[0] == pytest.approx(min(0.1, 30 / finding.evidence["times"]))


def unlike(place: int, span: float) -> Callable[[nn.Module], None]:
    """Multiply the inputs of one layer by factors that span so much."""

    def multiply(model: nn.Module) -> None:
        layer = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)][place]
        factors = span ** torch.linspace(-0.5, 0.5, layer.weight.shape[1])
        layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] * factors,))

    return multiply


@pytest.mark.parametrize(
    ("name", "layer", "prepare"),
    [
        ("ill-conditioned-layer", "4", unlike(1, 1000.0)),
        ("dead-units", "1", lambda model: model[2].bias.data[:90].fill_(-20.0)),
        ("vanishing-layer", "1", scaled(0, 0.003)),
        ("exploding-layer", "1", scaled(0, 20.0)),
    ],
)
@pytest.mark.parametrize("level", ["light", "standard"])
def test_what_a_layer_starts_with_is_found_though_the_loss_falls(
    name: str, layer: str, prepare: Any, level: Any
) -> None:
    trained = run(lambda: mlp(bn), partial(SGD, lr=0.1), prepare=prepare, steps=80, level=level)
    assert trained.names[:1] == [name], trained.diagnosis
    assert found(trained, name).layer == layer


def test_bnp_as_a_cure_multiplies_the_rate() -> None:
    torch.manual_seed(0)
    model = mlp(bn)
    unlike(1, 1000.0)(model)
    finding = found(train(model, SGD(model.parameters(), lr=0.02), steps=150, level="light"), "ill-conditioned-layer")
    finding.cure.apply(model, optimizer := SGD(model.parameters(), lr=0.02))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.06)
    assert trimtab.bnp.bnps_attached_to(optimizer)


HEALTHY: dict[str, Callable[[], Trained]] = {
    "mlp": lambda: run(mlp),
    "mlp, momentum": lambda: run(mlp, partial(SGD, lr=0.03, momentum=0.9)),
    "mlp, Adam": lambda: run(mlp, partial(Adam, lr=1e-3)),
    "mlp, inputs in [0, 1]": lambda: run(mlp, inputs=lambda x: (x - x.min()) / (x.max() - x.min()), steps=500),
    "mlp, full batch at the edge": lambda: run(mlp, partial(SGD, lr=1.0), batch_size=1300, steps=200),
    "mlp with BatchNorm": lambda: run(lambda: mlp(bn)),
    "mlp with LayerNorm": lambda: run(lambda: mlp(nn.LayerNorm), partial(SGD, lr=0.1)),
    "mlp with BNP": lambda: run(mlp, bnp=True),
    "mlp, decayed": lambda: run(mlp, partial(SGD, lr=0.3, weight_decay=1e-3)),
    "mlp, AdamW": lambda: run(mlp, partial(AdamW, lr=1e-3)),
    "cnn": lambda: run(cnn, partial(SGD, lr=0.5), steps=400),
    "cnn with BatchNorm": lambda: run(lambda: cnn(nn.BatchNorm2d)),
    "cnn with BatchNorm, batch 4": lambda: run(
        lambda: cnn(nn.BatchNorm2d), partial(SGD, lr=0.1), batch_size=4, steps=500
    ),
    "cnn with GroupNorm": lambda: run(lambda: cnn(gn), partial(SGD, lr=0.1)),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_trainings_have_no_finding(name: str) -> None:
    trained = HEALTHY[name]()
    assert trained.accuracy > 0.9
    assert trained.names == [], trained.diagnosis


def test_the_end_of_a_schedule_is_no_illness() -> None:
    torch.manual_seed(0)
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
    assert train(model, optimizer, schedule=schedule).names == []


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("learning-rate-too-high", {"optimizer": partial(SGD, lr=3.0)}),
        ("inputs-badly-scaled", {"inputs": lambda x: 100 * x}),
        ("dead-units", {"prepare": silenced(1)}),
    ],
)
def test_level_light_finds_what_the_loss_curve_and_a_look_tell(name: str, options: Any) -> None:
    trained = run(mlp, level="light", **options)
    assert name in trained.names
    assert not trained.record.trials


def test_level_light_has_nothing_to_say_of_a_healthy_training() -> None:
    assert run(mlp, level="light").names == []


def test_two_illnesses_are_both_named() -> None:
    trained = run(lambda: mlp(bn), partial(SGD, lr=0.01), prepare=slow_statistics)
    assert set(trained.names) == {"learning-rate-too-low", "train-eval-gap"}


def test_every_name_has_a_rule() -> None:
    assert len(RULES) == len(NAMES)
