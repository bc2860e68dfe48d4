"""Reading a module: the same as from descriptions, and what cannot be read is said."""

import argparse
import json
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab.cli import predict as command
from trimtab.networks import build
from trimtab.norms import LpNorm, MeanOnlyBatchNorm, Norm, VarianceOnlyBatchNorm
from trimtab.probes import Jacobian, fisher_lambda_max
from trimtab.theory.from_model import mean_field_prediction as predict
from trimtab.theory.from_model.prediction import measured
from trimtab.theory.mean_field import Conv, Dense, MaxPool, Pool, Residual, draw_network, mean_field
from trimtab.theory.mean_field.positions import Grid, Uniform

SIGMAS = {"sigma_w2": 2.0, "sigma_b2": 0.5}
LISTS = {
    "dense": ([Dense(30, 800), Dense(800, 700), Dense(700, 3)], (30,)),
    "convolutions": ([Conv(3, 200, 3, 2, size=11), Conv(200, 200, 3), Dense(1800, 3)], (3, 11, 11)),
    "padded, pooled": (
        [Conv(3, 200, 3, 1, 1, size=6), MaxPool(2), Conv(200, 200, 3, 1, 1), Pool(None), Dense(200, 3)],
        (3, 6, 6),
    ),
    "residual": ([Dense(30, 300), Residual([Dense(300, 300)] * 2), Dense(300, 3)], (30,)),
    "residual, after the sum": (
        [Dense(30, 300), Residual([Dense(300, 300)] * 2, preactivation=False), Dense(300, 3)],
        (30,),
    ),
}


def exact_variances(model: nn.Module) -> nn.Module:
    """Weights and biases brought to exactly the variances that they were drawn from."""
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.weight.mul_(math.sqrt(2 / layer.weight[0].numel() / layer.weight.square().mean()))
                layer.bias.mul_(math.sqrt(0.5 / layer.bias.square().mean()))
    return model


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("gamma", [None, 1.5])
@pytest.mark.parametrize("statistics", ["frozen", "batch"])
def test_a_drawn_network_reads_as_its_description(name: str, gamma: float | None, statistics: str) -> None:
    layers, shape = LISTS[name]
    torch.manual_seed(0)
    model = exact_variances(draw_network(layers, gamma=gamma, **SIGMAS))
    told = {"norm": gamma and "batch", "gamma": gamma or 1.0, "bias_terms": True, "statistics": statistics}
    expected = mean_field(layers, samples=100, **told, **SIGMAS)
    found = predict(model, shape, samples=100, momentum=0.5, statistics=statistics)
    assert found.lambda_max == pytest.approx(expected.lambda_max, rel=1e-4)
    assert found.upper_bound == pytest.approx(expected.upper_bound, rel=1e-4)
    assert found.max_learning_rate == pytest.approx(3 / found.lambda_max)
    assert found.optimal_learning_rate == pytest.approx(found.max_learning_rate / 2)
    assert found.unseen == ()
    assert math.fsum(found.terms.values()) == pytest.approx(found.lambda_max)


class Written(nn.Module):
    """A padded residual network in functions and methods."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one = nn.Conv2d(3, 40, 3, padding=1), nn.Conv2d(40, 40, 3, padding="same")
        self.norm, self.last = nn.BatchNorm2d(40), nn.BatchNorm2d(40)
        self.out = nn.Linear(40, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.one(F.relu(self.norm(x)))
        x = torch.relu(self.last(x)).mean((2, 3))
        return self.out(x.view(x.size(0), -1))


class Modules(Written):
    def __init__(self, other: Written) -> None:
        super().__init__()
        self.load_state_dict(other.state_dict())
        self.relu, self.pool, self.flat = nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x.add(self.one(self.relu(self.norm(x))))
        return self.out(self.flat(self.pool(self.relu(self.last(x)))))


def test_functions_and_modules_read_the_same() -> None:
    one = Written()
    first, second = (predict(model, (3, 6, 6)) for model in (one, Modules(one)))
    assert first.lambda_max == pytest.approx(second.lambda_max)
    assert first.unseen == second.unseen == ()
    assert list(first.terms) == ["stem", "norm", "one", "last", "out"]


def test_weights_and_gamma_are_those_of_the_model() -> None:
    model = nn.Sequential(nn.Linear(50, 400), nn.BatchNorm1d(400), nn.ReLU(), nn.Linear(400, 1))
    before = predict(model, (50,))
    nn.init.constant_(model[1].weight, 3.0)
    assert predict(model, (50,)).terms["3"] == pytest.approx(1 + 9 * (before.terms["3"] - 1))
    plain = nn.Sequential(nn.Linear(50, 400), nn.ReLU(), nn.Linear(400, 1))
    nn.init.zeros_(plain[0].bias)
    half = predict(plain, (50,)).terms
    plain[0].weight.data.mul_(2)
    assert predict(plain, (50,)).terms["2"] - 1 == pytest.approx(4 * (half["2"] - 1))


def test_beta_shifts_the_activation() -> None:
    """With a large β a ReLU is linear: then q̂_xy = β²."""
    model = nn.Sequential(nn.Linear(50, 400), nn.BatchNorm1d(400), nn.ReLU(), nn.Linear(400, 1))
    nn.init.constant_(model[1].bias, 10.0)
    assert predict(model, (50,)).terms["3"] == pytest.approx(1 + 400 * 100, rel=1e-3)


def test_moments_of_data() -> None:
    x = torch.randn(6, 2, 3, 4) + torch.randn(2, 3, 4)
    pairs = [(a, b) for a in range(6) for b in range(6) if a != b]
    flat = x.reshape(6, 2, 12).double()
    oracle = sum(flat[a].T @ flat[b] for a, b in pairs) / (2 * len(pairs))
    v, c = measured(x, (2, 3, 4), Grid((3, 4)))
    assert c.reshape(12, 12) == pytest.approx(oracle.numpy())
    assert v.ravel() == pytest.approx(flat.square().mean((0, 1)).numpy())
    v, c = measured(x, (2, 3, 4), Uniform((3, 4)))
    other = float(oracle.sum() - oracle.trace()) / 132
    assert (float(v), *c) == pytest.approx((float(flat.square().mean()), float(oracle.trace()) / 12, other))


def test_real_data_have_a_mean() -> None:
    torch.manual_seed(0)
    model = build("mf-mlp", "bn", input_shape=(60,))
    x = torch.randn(200, 60) + torch.randn(60)
    found = predict(model, (60,), inputs=x, samples=200)
    assert found.q_hat0_xy == pytest.approx(float(x.mean(0).square().mean()), rel=0.05)
    assert found.lambda_max == pytest.approx(fisher_lambda_max(model, x, outputs=0), rel=0.08)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.Softmax(1), "not known"),
        (nn.Dropout(0.5), "drops at random"),
        (nn.Dropout(0.0), ""),
        (nn.GroupNorm(4, 16), "takes groups of 4 channels"),
        (nn.LayerNorm(16), ""),
        (nn.PReLU(), "1 parameters are not counted"),
        (Norm("ghost").layer(16, 0), "taken for BatchNorm"),
        (nn.Sequential(MeanOnlyBatchNorm(16), nn.ReLU()), ""),
        (VarianceOnlyBatchNorm(16), ""),
        (nn.Sequential(LpNorm(16, p=2), nn.ReLU()), ""),
        (nn.Sequential(nn.ReLU(), nn.BatchNorm1d(16)), "nothing in common between samples"),
        (nn.BatchNorm1d(16), "nothing in common between samples"),
        (nn.Sequential(nn.BatchNorm1d(16), nn.Tanh()), "nothing in common between samples"),
        (nn.ReLU6(), ""),
        (nn.ELU(), ""),
    ],
)
def test_what_is_not_accounted_for_is_said(layer: nn.Module, words: str) -> None:
    found = predict(nn.Sequential(nn.Linear(5, 16), layer, nn.Linear(16, 1)), (5,))
    assert found.lambda_max > 0
    assert (found.unseen == ()) if not words else any(words in sentence for sentence in found.unseen)
    assert all(sentence.endswith(".") for sentence in found.unseen)


def test_a_sum_of_two_activations_and_a_layer_used_twice_are_said() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = F.relu(self.one(x))
            return self.two(2.0 * (y + F.relu(self.one(y)))), y

    found = predict(Odd(), (4,))
    assert sorted(word for word in ("more than once", "independent", "several outputs") if word in str(found)) == [
        *("independent", "more than once", "several outputs")
    ]


def test_what_is_not_trained_does_not_count() -> None:
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
    whole = predict(model, (5,))
    model[0].requires_grad_(False)
    assert predict(model, (5,)).terms == {"2": whole.terms["2"]}


def test_layers_in_one_dimension_and_in_groups() -> None:
    """A convolution in one dimension is one in two with a height of 1; groups of one channel have a smaller fan-in."""
    torch.manual_seed(0)
    line = nn.Sequential(
        *(nn.Conv1d(3, 8, 5, padding=2), nn.BatchNorm1d(8), nn.ELU(inplace=True), nn.AvgPool1d(2)),
        *(nn.Conv1d(8, 8, 3, stride=2, groups=4), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2)),
    )
    plane = nn.Sequential(
        *(nn.Conv2d(3, 8, (1, 5), padding=(0, 2)), nn.BatchNorm2d(8), nn.ELU(), nn.AvgPool2d((1, 2))),
        *(nn.Conv2d(8, 8, (1, 3), stride=2, groups=4), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2)),
    )
    plane.load_state_dict({k: v[:, :, None] if v.ndim == 3 else v for k, v in line.state_dict().items()})
    one, other = predict(line, (3, 20)), predict(plane, (3, 1, 20))
    assert one.lambda_max == pytest.approx(other.lambda_max)
    assert one.unseen == other.unseen == ()


def flat(*layers: nn.Module, features: int) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 2))


ODD = [
    (flat(nn.Conv3d(2, 4, 3), features=32), (2, 4, 4, 4), "220 parameters"),
    (flat(nn.Conv2d(1, 2, 2, padding="same"), features=18), (1, 3, 3), "one side"),
    (flat(nn.Conv2d(1, 2, 2), nn.MaxPool2d(2, ceil_mode=True), features=8), (1, 4, 4), "different sizes"),
    (flat(nn.Conv2d(1, 2, 2), nn.AdaptiveAvgPool2d(2), features=8), (1, 4, 4), "different sizes"),
    (flat(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), features=8), (1, 2, 2), "circular"),
    (flat(nn.utils.parametrizations.weight_norm(nn.Linear(4, 8)), features=8), (4,), "computed from"),
]


@pytest.mark.parametrize(("model", "shape", "words"), ODD)
def test_odd_layers_are_said(model: nn.Module, shape: tuple[int, ...], words: str) -> None:
    assert any(words in sentence for sentence in predict(model, shape).unseen)


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("model", "told", "words"),
    [
        (Branching(), {}, "model cannot be traced"),
        (nn.Linear(4, 2), {}, "input_shape"),
        (nn.ReLU(), {}, "Nothing can be predicted"),
        (nn.Linear(3, 2), {"momentum": 1.0}, "momentum"),
        (nn.Linear(3, 2), {"statistics": "running"}, "statistics"),
        (nn.Linear(3, 2), {"samples": 0}, "samples"),
        (nn.Linear(3, 2), {"inputs": torch.randn(5, 4)}, "inputs"),
        (nn.Linear(3, 2), {"inputs": torch.randn(1, 3)}, "inputs"),
        (nn.Linear(3, 2), {"inputs": torch.full((5, 3), math.nan)}, "inputs"),
    ],
)
def test_bad_input(model: nn.Module, told: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        predict(model, (3,), **told)
    with pytest.raises(ValueError, match="input_shape"):
        predict(model, (0,))


def test_weights_that_are_not_finite() -> None:
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight, math.nan)
    with pytest.raises(ValueError, match=r"values in 0\.weight that are not finite"):
        predict(model, (3,))


def test_the_model_is_left_as_it_is() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)
    )
    model[0].register_forward_hook(lambda *_: None)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    predict(model, (2, 4, 4), inputs=torch.zeros(3, 2, 4, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(p.grad is None for p in model.parameters())
    assert len(model[0]._forward_hooks) == 1


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers())
    options = parser.parse_args(["predict", *words])
    return options.run(options)


@pytest.mark.usefixtures("few_draws")
def test_command_prints_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run("small-mlp", "--norm", "bn-pre", "--gamma", "0.5", "--data", "digits", "--measure", "--samples", "40") == 0
    )
    out = capsys.readouterr().out
    assert "λ_max" in out
    assert "For cross-entropy, all outputs, train mode" in out and "λ_max, measured on 40 samples" in out
    assert run("mf-conv", "--norm", "bn", "--momentum", "0.9", "--sigma-w2", "1.5", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["max_learning_rate"] == pytest.approx(3.8 / told["lambda_max"])
    assert told["unseen"] == []
    assert run("dln25", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["predicted"] == 0 and told["lambda_max"] > 0  # without a direction in common formulas have nothing
    assert predict(build("dln25"), (10,)).to_dict()["max_learning_rate"] is None


@pytest.mark.parametrize("words", [["nonsense"], ["mf-mlp", "--data", "nonsense"], ["vgg", "--momentum", "2"]])
def test_command_says_what_is_wrong(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"no network|no data set|momentum must be"):
        run(*words)


def network(*layers: nn.Module, bias: float | None = None) -> nn.Module:
    """Weights of variance 2/fan-in, biases of 0.5 or all alike."""
    model = nn.Sequential(*layers)
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=math.sqrt(2 / module.in_features))
            if bias is None:
                nn.init.normal_(module.bias, std=math.sqrt(0.5))
            else:
                nn.init.constant_(module.bias, bias)
    return model


@pytest.mark.parametrize("bias", [-1.0, 2.0])
def test_biases_that_have_a_mean(bias: float) -> None:
    ratios = []
    for seed in range(6):
        torch.manual_seed(seed)
        model = network(nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 500), nn.ReLU(), nn.Linear(500, 1), bias=bias)
        x = torch.randn(200, 800)
        along = torch.full((200,), 200**-0.5)  # the direction in which all samples agree, which the sum is for
        found = float(along @ Jacobian(model, x, outputs=0).gram_times(along))
        ratios.append(predict(model, (800,), samples=200, inputs=x).lambda_max / found)
    assert sum(ratios) / 6 == pytest.approx(1, abs=0.08)


def test_weights_that_have_a_mean_are_said() -> None:
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 1))
    nn.init.constant_(model[0].weight, 0.05)
    assert any("0.weight has a mean of 0.05" in sentence for sentence in predict(model, (20,)).unseen)


def test_layer_norm_after_the_activation() -> None:
    found = []
    for seed in range(3):
        torch.manual_seed(seed)
        layers = (nn.Linear(50, 500), nn.ReLU(), nn.LayerNorm(500))
        model = network(*layers, nn.Linear(500, 500), nn.ReLU(), nn.LayerNorm(500), nn.Linear(500, 1))
        x = torch.randn(200, 50)
        prediction = predict(model, (50,), samples=200, inputs=x).lambda_max
        found.append(prediction / fisher_lambda_max(model, x, outputs=0))
    assert sum(found) / 3 == pytest.approx(1, abs=0.08)


class Averaging(nn.Module):
    def __init__(self, dim: int | tuple[int, ...]) -> None:
        super().__init__()
        self.one, self.two, self.dim = nn.Conv1d(3, 8, 3, bias=False), nn.Linear(8, 1), dim

    def forward(self, x: Tensor) -> Tensor:
        return self.two(F.relu(self.one(x)).mean(self.dim))


def test_a_mean_is_over_positions_or_unknown() -> None:
    assert predict(Averaging(2), (3, 10)).unseen == ()
    assert predict(Averaging((-1,)), (3, 10)).unseen == ()
    assert any("is not known" in sentence for sentence in predict(Averaging(1), (3, 10)).unseen)
    unlike = flat(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AvgPool2d(3, 2, 1, count_include_pad=False), features=18)
    assert any("divides by something else" in sentence for sentence in predict(unlike, (1, 8, 8)).unseen)


def test_a_convolution_at_the_output_counts_one_position() -> None:
    layers = [Conv(3, 100, 3, size=8), Conv(100, 1, 3)]
    torch.manual_seed(0)
    model, x = draw_network(layers, gamma=1.0, sigma_w2=2.0, sigma_b2=0.5), torch.randn(64, 3, 8, 8)
    found = sum(fisher_lambda_max(model, x, outputs=i) for i in range(0, 16, 5)) / 4
    told = {"norm": "batch", "bias_terms": True, "samples": 64, "sigma_w2": 2.0, "sigma_b2": 0.5}
    assert mean_field(layers, **told).lambda_max == pytest.approx(found, rel=0.06)
    assert predict(model, (3, 8, 8), samples=64).lambda_max == pytest.approx(found, rel=0.08)
    with pytest.raises(ValueError, match="outputs of one position"):
        mean_field(layers, variant="paper", **told)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_what_cannot_be_read_is_named() -> None:
    good = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1))
    with pytest.raises(ValueError, match=r"model must be a torch\.nn\.Module"):
        predict(5, (4,))
    for shape in (4, None, (), (0,), (4.0,)):
        with pytest.raises(ValueError, match="input_shape must be"):
            predict(good, shape)
    for samples in (1.5, math.nan, True, 0):
        with pytest.raises(ValueError, match="samples must be"):
            predict(good, (4,), samples=samples)
    with pytest.raises(ValueError, match=r"0\.weight of shape \(0, 4\)"):
        predict(nn.Sequential(nn.Linear(4, 0), nn.ReLU(), nn.Linear(0, 1)), (4,))
    for name in ("0.bias", "1.weight", "1.bias"):
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1))
        nn.init.constant_(model.get_parameter(name), math.nan)
        with pytest.raises(ValueError, match=f"values in {name} that are not finite"):
            predict(model, (4,))


def test_hooks_of_the_user_do_not_run() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    seen: list[object] = []
    model[0].register_forward_hook(lambda *args: seen.append(args))
    predict(model, (4,))
    assert not seen and len(model[0]._forward_hooks) == 1
