"""Every option of every probe is checked when the probe is made, and what a probe is called with at the first call."""

import functools
import math
import re
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import trimtab
from trimtab.probes import (
    Ablation,
    Activations,
    BatchNoise,
    Conditioning,
    CovariateShift,
    Fisher,
    Landscape,
    Monitor,
    NormGradients,
    Probe,
    RandomLandscape,
    Robustness,
    Spectrum,
    VarianceShift,
    Weights,
    fisher_lambda_max,
)

# What each needs so that nothing is missing.
PROBES: dict[type[Any], dict[str, Any]] = {
    Activations: {},
    BatchNoise: {},
    Conditioning: {},
    CovariateShift: {"step_size": 0.1},
    Landscape: {"step_size": 0.1},
    RandomLandscape: {"step_size": 0.1},
    Spectrum: {},
    Ablation: {},
    Fisher: {"forward": lambda model, batch: model(batch)},
    NormGradients: {},
    Robustness: {},
    VarianceShift: {},
    Weights: {},
}
WHOLE = ("3", 1.5, True, math.nan, -1, [], 1j)
NUMBER = ("0.1", True, math.nan, math.inf, -1.0, [], 1j)
WORD = (None, "foo", "", 3, [], True, ("batch",))
FUNCTION = ("forward", 3, lambda x: x, lambda a, b, c: a)
OBJECT = ("sgd", 3, nn.Linear(1, 1), torch.optim.SGD, trimtab.BNP)
BAD: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("units", "max_entries", "max_products", "examples", "bins", "draws", "parts"), (None, *WHOLE)),
    **dict.fromkeys(("top", "dense_up_to", "trace_vectors", "density_vectors", "density_steps"), (None, *WHOLE)),
    **dict.fromkeys(("max_layers", "max_vectors"), (None, *WHOLE)),
    **dict.fromkeys(("max_layers", "batch_size"), (0, *WHOLE)),
    **dict.fromkeys(("eps1", "eps2", "tolerance", "density_width"), (None, *NUMBER)),
    **dict.fromkeys(("statistics", "direction", "matrix", "likelihood", "link", "spatial", "no_bias"), WORD),
    **dict.fromkeys(("lower_end", "per_layer", "gradient_only"), (None, 1, "yes")),
    **dict.fromkeys(("layers", "only"), (None, 3, [3], {"a": 1}, [None])),
    **dict.fromkeys(("forward", "criterion", "split"), FUNCTION),
    **dict.fromkeys(("optimizer", "bnp"), OBJECT),
    **dict.fromkeys(("output", "orders"), (None, *WHOLE)),
    "data": (3, "data", (), [3], torch.tensor(1.0), {"x": torch.empty(0, 3)}),
    "pair": ("pair", 3),
    "eps": (None, 3, "ab", (0.0,), (0.2, 0.1), (0.1, 0.1), ("1",), (math.nan,), (True,)),
    "shares": (None, 3, (), "ab", (0.0,), (1.1,), (0.5, 0.2), ("1",), (math.nan,)),
    "sizes": (None, 3, "ab", (0,), (1.5,), (4, 2), ("1",), (True,)),
    "scale": (None, 0, -1.0, "1", math.nan, True, torch.tensor([1.0, 0.0]), torch.tensor([1, 2])),
    "seed": (None, *WHOLE, 2**64),
    "step_size": (0, *NUMBER, torch.tensor(math.nan), torch.ones(2)),
    "multiples": (None, 3, (), "ab", (0.0,), ("1",), (math.nan,), (True,)),
    "limits": (3, (), (1,), (1, 1), (2, 1), (0, math.inf), ("a", "b"), "ab"),
}
CASES = [
    pytest.param(probe, option.name, value, id=f"{probe.__name__}-{option.name}-{number}")
    for probe in PROBES
    for option in fields(probe)
    for number, value in enumerate((object(), *BAD[option.name]))
]


@pytest.mark.parametrize(("probe", "option", "value"), CASES)
def test_what_has_no_meaning_is_refused_at_once(probe: type[Probe[Any]], option: str, value: Any) -> None:
    given = {**PROBES[probe], option: value}
    if option == "optimizer":
        given.pop("step_size", None)
    if option == "bnp" and probe is CovariateShift:
        given = {"optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1), "bnp": value}
    with pytest.raises(ValueError, match=rf"^{option} must be .*\.$") as refused:
        probe(**given)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("former", "word"), [("train", "batch"), ("eval", "running")])
def test_former_words_for_statistics_are_understood(former: str, word: str) -> None:
    model, data = nn.Linear(3, 2), torch.ones(4, 3)
    sentence = f"statistics={former!r} is now statistics={word!r}"
    with pytest.warns(DeprecationWarning, match=sentence) as warned:
        probe = Landscape(step_size=0.1, statistics=former)
    assert probe.statistics == word and warned[0].filename == __file__
    assert probe(model, lambda m, b: m(b).square().mean(), data).problem is None
    with pytest.warns(DeprecationWarning, match=sentence):
        assert fisher_lambda_max(model, data, statistics=former) == fisher_lambda_max(model, data, statistics=word)


def test_predict_understands_the_former_word_for_statistics() -> None:
    with pytest.warns(DeprecationWarning, match="statistics='train' is now statistics='batch'"):
        assert trimtab.predict(nn.Linear(3, 2), (3,), statistics="train").statistics == "batch"


FORMER = [
    (Activations, "most", "max_layers"),
    (CovariateShift, "most", "max_layers"),
    (Conditioning, "most_entries", "max_entries"),
    (Conditioning, "most_products", "max_products"),
    (Spectrum, "most_layers", "max_layers"),
    (Spectrum, "most_products", "max_products"),
    (Spectrum, "most_vectors", "max_vectors"),
]


@pytest.mark.parametrize(("kind", "former", "name"), FORMER)
def test_former_names_of_options_are_understood(kind: type[Any], former: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"^{former} is now called {name};") as warned:
        probe = kind(**PROBES[kind], **{former: 9})
    assert warned[0].filename == __file__
    assert probe == kind(**PROBES[kind], **{name: 9})
    with pytest.warns(DeprecationWarning, match=f"^{former} is now called {name};"):
        assert getattr(probe, former) == 9
    with pytest.raises(TypeError, match=f"{former} is the former name of {name}; give only {name}"):
        kind(**PROBES[kind], **{former: 9, name: 9})


def test_the_choices_are_named() -> None:
    with pytest.raises(
        ValueError, match=re.escape("statistics must be one of 'batch', 'frozen', 'running', not 'foo'.")
    ):
        Landscape(step_size=0.1, statistics="foo")
    with pytest.raises(ValueError, match=re.escape("link must be one of 'relu', 'linear', 'sigmoid', not 'gelu'.")):
        BatchNoise(link="gelu")


def test_numbers_of_numpy_and_torch_are_numbers() -> None:
    x = torch.randn(4, 3)
    probe = Landscape(step_size=torch.tensor(0.1), multiples=np.linspace(1, 2, 3), seed=np.int64(3), direction="random")
    found = probe(nn.Linear(3, 1), loss_fn, x)
    assert found.problem is None and found.multiples == (1.0, 1.5, 2.0) and type(found.step_size) is float
    assert Landscape(step_size=1, multiples=torch.tensor([0.5, 1.0])).multiples == (0.5, 1.0)
    assert Spectrum(top=np.int32(2), tolerance=np.float32(0.1))(nn.Linear(3, 1), loss_fn, x).problem is None
    assert Activations(layers="0", limits=[0, 1], bins=np.int64(4)).layers == ("0",)


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


class Wanting:
    def __call__(self, model: nn.Module, batch: Tensor, extra: int) -> Tensor:
        return loss_fn(model, batch)


CALLED = "loss_fn is called as loss_fn(model, batch), "
WRONG = [
    (lambda model: model, CALLED + "which <lambda>(model) does not accept."),
    (lambda: 0, CALLED + "which <lambda>() does not accept."),
    (Wanting(), CALLED + "which an object of Wanting does not accept."),
    (nn.Linear(1, 1), CALLED + "which an object of Linear does not accept."),
    (nn.CrossEntropyLoss(), CALLED + "but an object of CrossEntropyLoss takes outputs and targets: "),
    (nn.functional.mse_loss, CALLED + "but mse_loss("),
    ("mse", "loss_fn must be a function, called as loss_fn(model, batch), not 'mse'."),
    (None, "loss_fn must be a function, called as loss_fn(model, batch), not None."),
]


@pytest.mark.parametrize(("wrong", "sentence"), WRONG)
def test_a_wrong_loss_function_is_refused_at_the_first_call(wrong: Any, sentence: str) -> None:
    model, x = nn.Linear(2, 1), torch.ones(3, 2)
    for call in (Landscape(step_size=0.1), Monitor([Landscape(step_size=0.1)]), Monitor([Activations()], at=[5])):
        with pytest.raises(TypeError) as refused:
            call(model, wrong, x)
        assert str(refused.value).startswith(sentence) and "\n" not in str(refused.value)


def test_a_model_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^model must be a torch.nn.Module, not <lambda>\(x\)\.$"):
        Monitor([Landscape(step_size=0.1)])(lambda x: x, loss_fn, torch.ones(3, 2))


def test_loss_functions_of_all_kinds_are_taken() -> None:
    def more(model: nn.Module, batch: Tensor, factor: float = 1.0) -> Tensor:
        return factor * loss_fn(model, batch)

    def any_number(*args: Any) -> Tensor:
        return loss_fn(*args)

    class Own(nn.Module):
        def forward(self, model: nn.Module, batch: Tensor) -> Tensor:
            return loss_fn(model, batch)

    for each in (more, any_number, Own(), functools.partial(more, factor=2.0)):
        assert Landscape(step_size=0.1)(nn.Linear(2, 1), each, torch.ones(3, 2)).problem is None


def test_a_loss_without_a_gradient_is_said() -> None:
    for probe in (Landscape(step_size=0.1), CovariateShift(step_size=0.1), Spectrum()):
        found = probe(nn.Linear(2, 1), lambda model, batch: batch.sum(), torch.ones(3, 2))
        assert found.problem == "The loss depends on no parameter that is trained, so that it has no gradient."
