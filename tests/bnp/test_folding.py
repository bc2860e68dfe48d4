"""Folding BatchNorm into weights: the oracle is the model itself, in evaluation."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import trimtab
from trimtab.networks import NETWORKS, build, input_shape


def trained(model: nn.Module, *, sign: bool = True) -> nn.Module:
    """The model with statistics and parameters of BatchNorm as after training; some γ are negative, if `sign`."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            module.running_mean.copy_(torch.randn(module.num_features, generator=generator))
            module.running_var.copy_(torch.rand(module.num_features, generator=generator) * 3 + 0.05)
            if module.affine:
                gamma = torch.randn(module.num_features, generator=generator)
                module.weight.data.copy_(gamma if sign else gamma.abs())
                module.bias.data.copy_(torch.randn(module.num_features, generator=generator))
    return model


def difference(model: nn.Module, inputs: Tensor) -> float:
    """How far the folded model is from the model, relative to its outputs; the model itself must not change."""
    before = copy.deepcopy(model.state_dict())
    mode = model.training
    folded = trimtab.fold_batchnorm(model)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in folded.modules())
    assert folded.training == model.training == mode
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with torch.no_grad():
        expected, got = copy.deepcopy(model).eval()(inputs), folded.eval()(inputs)
    assert expected.isfinite().all() and expected.abs().max() > 0
    return float((got - expected).norm() / expected.norm())


@st.composite
def sandwiches(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """A BatchNorm before or after its activation, between two layers of drawn sizes."""
    space = draw(st.sampled_from((0, 1, 2)))
    groups = draw(st.sampled_from((1, 2)))
    middle = 2 * draw(st.integers(1, 3))
    torch.manual_seed(draw(st.integers(0, 1000)))
    options: dict[str, Any] = {"eps": draw(st.sampled_from((0.0, 1e-5, 1e-3, 0.5)))}
    options |= {"momentum": draw(st.sampled_from((None, 0.1, 1.0))), "affine": draw(st.booleans())}
    before = draw(st.booleans())
    bias = draw(st.booleans())
    layers: list[nn.Module]
    if space == 0:
        first, last = nn.Linear(4, middle, bias=bias), nn.Linear(middle, 3, bias=bias)
        norm: nn.Module = nn.BatchNorm1d(middle, **options)
        inputs = torch.randn(5, 4)
    else:
        kind = (nn.Conv1d, nn.Conv2d)[space - 1]
        transposed = (nn.ConvTranspose1d, nn.ConvTranspose2d)[space - 1]
        size: dict[str, Any] = {"stride": draw(st.integers(1, 2)), "dilation": draw(st.integers(1, 2))}
        make = draw(st.sampled_from((kind, transposed)))
        first = make(4, middle, 3, padding=draw(st.integers(0, 1)), groups=groups, bias=bias, **size)
        modes = {} if before else draw(st.sampled_from(({}, {"padding": 1, "padding_mode": "replicate"})))
        last = kind(middle, 4, draw(st.integers(1, 2)), groups=groups, bias=bias, **modes)
        norm = (nn.BatchNorm1d, nn.BatchNorm2d)[space - 1](middle, **options)
        inputs = torch.randn(3, 4, *(9,) * space)
    layers = [first, norm, nn.Tanh(), last] if before else [first, nn.Tanh(), norm, nn.Dropout(0.3), last]
    return trained(nn.Sequential(*layers)).double(), inputs.double()


@given(sandwiches())
@settings(max_examples=60, deadline=None)
def test_drawn_models_keep_their_outputs(case: tuple[nn.Module, Tensor]) -> None:
    model, inputs = case
    assert difference(model, inputs) < 1e-10
    assert difference(model.float(), inputs.float()) < 1e-4


FOLDED = [
    "mlp3x100",
    "mlp2x100",
    "cnn5",
    "vgg",
    "vgg16",
    "dln25",
    "deep-mlp",
    "mf-mlp",
    "mf-conv",
    "regcnn",
    "resnet18",
    "small-mlp",
]
REFUSED = {
    "small-cnn": r"2 \(BatchNorm2d\).*before it is 1 \(ReLU\).* 4 \(Conv2d\) pads with zeros",
    "preact18": r"\(BatchNorm2d\) cannot be folded: before it.* a sum .*after it is .* \(ReLU\)",
    "preact110": r"\(BatchNorm2d\) cannot be folded: before it.* a sum .*after it is .* \(ReLU\)",
}
SLOW = {"resnet110", "preact110", "vgg16", "resnet18", "vgg"}


def test_every_network_is_folded_or_refused() -> None:
    assert {*FOLDED, *REFUSED, "resnet110"} >= set(NETWORKS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in (*FOLDED, "resnet110")]
)
def test_networks_of_the_papers(name: str) -> None:
    torch.manual_seed(0)
    # The deeper ones would make noise of their inputs with gamma of any size, and then no float32 is 1e-4 exact.
    deep = name in ("dln25", "resnet110", "resnet18", "vgg", "vgg16")
    model = build(name, "bn")
    if deep:
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                assert module.running_mean is not None and module.running_var is not None
                module.running_mean.uniform_(-0.1, 0.1)
                module.running_var.uniform_(0.5, 1.5)
                module.bias.data.uniform_(-0.1, 0.1)
    else:
        trained(model, sign=False)
    inputs = torch.randn(2, *input_shape(name))
    assert difference(model, inputs) < 1e-4
    assert difference(model.double(), inputs.double()) < 1e-10


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in REFUSED])
def test_networks_that_cannot_be_folded(name: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[name]) as caught:
        trimtab.fold_batchnorm(trained(build(name, "bn"), sign=False))
    assert str(caught.value).count(".\n") == 0 and str(caught.value).endswith(".")


def test_small_cnn_can_be_folded_before_its_activation() -> None:
    model = trained(build("small-cnn", "bn-pre")).double()
    assert difference(model, torch.randn(2, 1, 8, 8).double()) < 1e-10


class Bottleneck(nn.Module):
    """A block as torchvision has it, with grouped convolution and a projection."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=2, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if inputs != outputs or stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        result: Tensor = self.relu(out)
        return result


class ResNet(nn.Module):
    """As torchvision's, small; its head ends with a BatchNorm over flat features."""

    def __init__(self, flatten: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(Bottleneck(8, 4, 16, 1), Bottleneck(16, 4, 16, 1))
        self.layer2 = nn.Sequential(Bottleneck(16, 8, 32, 2))
        self.neck = nn.Conv2d(32, 6, 1)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.norm, self.fc = nn.BatchNorm1d(6), nn.Linear(6, 5)
        self.flatten = flatten

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.neck(self.layer2(self.layer1(x)))
        result: Tensor = self.fc(self.norm(self.flatten(self.avgpool(x))))
        return result


@pytest.mark.parametrize(
    "flatten",
    [
        lambda x: torch.flatten(x, 1),
        lambda x: x.flatten(1),
        lambda x: x.view(x.size(0), -1),
        lambda x: x.reshape(x.shape[0], -1),
        lambda x: x.view(x.size()[0], -1),
        lambda x: x.mean((2, 3)),
        lambda x: x.mean([-1, -2]),
    ],
)
def test_a_residual_network_as_torchvision_has_it(flatten: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model = trained(ResNet(flatten)).double()
    assert difference(model, torch.randn(2, 3, 32, 32).double()) < 1e-10


class BatchNormAct2d(nn.BatchNorm2d):
    """BatchNorm with its activation within it, as in timm."""

    def __init__(self, width: int, act: nn.Module) -> None:
        super().__init__(width)
        self.drop, self.act = nn.Identity(), act

    def forward(self, x: Tensor) -> Tensor:
        x = F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training,
            self.momentum or 0.0,
            self.eps,
        )
        result: Tensor = self.act(self.drop(x))
        return result


def test_a_batchnorm_with_its_activation_within() -> None:
    model = trained(nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), BatchNormAct2d(4, nn.SiLU()), nn.Conv2d(4, 2, 3)))
    assert difference(model.double(), torch.randn(2, 3, 8, 8).double()) < 1e-10
    after = trained(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), BatchNormAct2d(4, nn.SiLU()), nn.Conv2d(4, 2, 3)))
    with pytest.raises(ValueError, match="it has an activation within it"):
        trimtab.fold_batchnorm(after)


def rows(*layers: nn.Module) -> nn.Module:
    return trained(nn.Sequential(*layers))


@pytest.mark.parametrize(
    "model",
    [
        rows(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.BatchNorm2d(4), nn.AvgPool2d(2), nn.Conv2d(4, 2, 1)),
        rows(nn.Conv2d(2, 4, 3), nn.AvgPool2d(2, padding=1, count_include_pad=False), nn.BatchNorm2d(4)),
        rows(nn.Conv2d(2, 4, 3), nn.Upsample(scale_factor=2, mode="bilinear"), nn.BatchNorm2d(4)),
        rows(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)),
        rows(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4)),
        rows(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.Conv2d(4, 1, 3)),
        rows(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.BatchNorm2d(4), nn.Conv2d(4, 1, 3, padding="valid")),
        rows(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 6, 1, groups=2)),
        rows(nn.ConvTranspose2d(2, 4, 3, stride=2, output_padding=1, groups=2), nn.SyncBatchNorm(4)),
    ],
)
def test_what_lies_between(model: nn.Module) -> None:
    assert difference(model.double(), torch.randn(2, 2, 8, 8).double()) < 1e-10


def test_a_scale_alone_passes_zero_padding() -> None:
    norm = nn.BatchNorm2d(4, affine=False)
    assert norm.running_var is not None
    norm.running_var.fill_(4.0)
    for last in (nn.Conv2d(4, 2, 3, padding=1), nn.ConvTranspose2d(4, 2, 3, stride=2)):
        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), norm, last).double()
        assert difference(model, torch.randn(2, 2, 8, 8).double()) < 1e-10


class Twice(nn.Module):
    """One BatchNorm, read by two layers, and its input read by the sum that is made in place meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh()
        y = self.norm(x)
        x += 1
        return x * self.left(y) + self.right(y)


def test_several_layers_read_one_batchnorm() -> None:
    assert difference(trained(Twice()).double(), torch.randn(5, 3).double()) < 1e-10


def test_a_linear_may_have_been_meant_for_sequences() -> None:
    model = rows(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    folded = trimtab.fold_batchnorm(model)
    assert difference(model, torch.randn(5, 4)) < 1e-6
    with pytest.raises(ValueError, match="right for inputs of 2 dimensions"):  # BatchNorm's channels are others there
        folded(torch.randn(5, 4, 4))
    certain = trimtab.fold_batchnorm(rows(nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    assert type(certain.get_submodule("3")) is nn.Identity


def shared_weight() -> nn.Module:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, nn.BatchNorm1d(4), nn.ReLU(), second)


def used_twice() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.BatchNorm1d(4), nn.ReLU(), layer)


class OwnForward(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) ** 2


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(self.layer(x)), self.layer.weight)


class TransposedToo(nn.Module):
    """An attribute of torch is a value, too: here the features are read beside the BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.layer(x)
        return self.norm(x), x.T


class Video(nn.Module):
    """Makes samples of frames and puts them together again: flattened are all frames of a video."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.head = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Linear(3 * 4 * 4, 5)

    def forward(self, videos: Tensor) -> Tensor:
        frames = videos.flatten(0, 1)
        seen = self.norm(F.relu(self.layer(frames)))
        result: Tensor = self.head(seen.view(videos.size(0), -1))
        return result


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return self.norm(x) if x.sum() > 0 else x


def infinite() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    nn.init.constant_(model.get_parameter("1.weight"), math.inf)
    return model


def hooked(name: str, *, before: bool = False) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4))
    module = model.get_submodule(name)
    if before:
        module.register_forward_pre_hook(lambda _, inputs: inputs[0].abs())
    else:
        module.register_forward_hook(lambda _, __, outputs: outputs.abs())
    return model


def forward_of_its_own() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[1].forward = torch.abs  # type: ignore[assignment]
    return model


def overflowing() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    nn.init.constant_(model.get_parameter("1.weight"), 6e4)
    nn.init.constant_(model.get_parameter("0.weight"), 100.0)
    return model.half()


def computed() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    weight = model[0].weight
    del model[0].weight
    model[0].weight = weight * 2
    return model


UNFOLDABLE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "nothing": (lambda: nn.Linear(3, 3), "has no BatchNorm layer of torch"),
    "alone": (lambda: nn.BatchNorm1d(3), "there is no layer to fold it into"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(3), nn.BatchNorm1d(3)), "lazy layers"),
    "no statistics": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)),
        r"1 \(BatchNorm1d\) cannot be folded: it has no running statistics",
    ),
    "used twice": (used_twice, r"before it, 0 \(Linear\) is called 2 times, and after it is 2 \(ReLU\)"),
    "shared": (shared_weight, r"before it, 0 \(Linear\) shares a parameter"),
    "tied": (Tied, "before it, layer .* the model reads its parameters by itself"),
    "attribute": (TransposedToo, r"before it, the output of layer \(Linear\) is read by others too"),
    "frames": (Video, r"before it is relu\(\), and after it is view\(\)"),
    "untraceable": (Untraceable, "cannot be traced by torch.fx"),
    "own forward": (
        lambda: nn.Sequential(OwnForward(3, 3), nn.BatchNorm1d(3)),
        "OwnForward with a forward of its own, and after it is the model's output",
    ),
    "parametrized": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), nn.BatchNorm1d(3)),
        "has a weight that is computed from other parameters",
    ),
    "padded": (
        lambda: rows(nn.ReLU(), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 3, padding="same")),
        r"before it is 0 \(ReLU\), and after it, 2 \(Conv2d\) pads with zeros",
    ),
    "transposed": (
        lambda: rows(nn.ReLU(), nn.BatchNorm2d(3), nn.ConvTranspose2d(3, 3, 2)),
        "spreads the shift unevenly",
    ),
    "maxima": (
        lambda: rows(nn.ReLU(), nn.BatchNorm2d(9), nn.MaxPool2d(2), nn.Conv2d(9, 3, 1)),
        "takes maxima, while the BatchNorm multiplies some channels by negative numbers",
    ),
    "average over padding": (
        lambda: rows(nn.ReLU(), nn.BatchNorm2d(3), nn.AvgPool2d(3, padding=1), nn.Conv2d(3, 3, 1)),
        "averages over zeros of its padding",
    ),
    "width": (lambda: rows(nn.Linear(3, 4), nn.BatchNorm1d(5)), "has 4 features or channels, not the 5"),
    "last dimension": (
        lambda: rows(nn.ReLU(), nn.BatchNorm2d(4), nn.Linear(4, 4)),
        "takes features in the last dimension",
    ),
    "flattened": (
        lambda: rows(nn.Conv2d(2, 3, 1), nn.Flatten(), nn.BatchNorm1d(12)),
        "has 3 features or channels, not the 12 of the BatchNorm",
    ),
    "the input": (lambda: rows(nn.BatchNorm1d(3), nn.ReLU()), "before it is the model's input, and after it is 1"),
    "hook of the layer": (lambda: hooked("0"), r"before it, 0 \(Linear\) has hooks"),
    "hook between": (lambda: hooked("1", before=True), r"before it, 1 \(Dropout\) has hooks"),
    "hook of the BatchNorm": (lambda: hooked("2"), "2 cannot be folded: it has hooks"),
    "forward replaced": (forward_of_its_own, "1 cannot be folded: it is a BatchNorm1d, which does more than BatchNorm"),
    "too large": (overflowing, r"too large for torch.float16; convert the model to float32"),
    "not copied": (computed, "cannot be copied by copy.deepcopy: Only Tensors created explicitly"),
    "not finite": (infinite, "its statistics or parameters are not finite"),
}


@pytest.mark.parametrize("name", UNFOLDABLE)
def test_what_cannot_be_folded(name: str) -> None:
    make, words = UNFOLDABLE[name]
    with pytest.raises(ValueError, match=words) as caught:
        trimtab.fold_batchnorm(make())
    assert "\n" not in str(caught.value)


def test_only_modules_are_folded() -> None:
    with pytest.raises(TypeError, match=r"fold_batchnorm takes a torch\.nn\.Module, not int"):
        trimtab.fold_batchnorm(3)  # type: ignore[arg-type]
