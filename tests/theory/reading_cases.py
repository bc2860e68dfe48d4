"""Networks with one construct each, for the tests of what `predict` can read."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab.probes import fisher_lambda_max
from trimtab.theory.from_model import mean_field_prediction as predict

WIDTH = 300


class Doubled(nn.Linear):
    """A Linear layer by inheritance, not by what it does."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, 2 * self.weight, self.bias)


class NormAct(nn.BatchNorm1d):
    """A BatchNorm that carries its activation, by way of its base class."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


class NormAct2d(nn.BatchNorm2d):
    """The same as libraries have it: own call of the function, dropout and activation as modules."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.drop, self.act = nn.Identity(), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        torch._assert(x.ndim == 4, "four dimensions")
        training = self.training or self.running_mean is None
        x = F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, training, 0.1, self.eps)
        return self.act(self.drop(x))


class Between(nn.Module):
    """Two Linear layers with something between them that may use a third one, and a parameter."""

    def __init__(
        self,
        what: Callable[["Between", Tensor], Tensor],
        *,
        features: int = WIDTH,
        norm: bool = False,
        gamma: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.one, self.branch = nn.Linear(60, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.two, self.out = nn.Linear(features, WIDTH), nn.Linear(WIDTH, 1)
        self.norm = nn.BatchNorm1d(WIDTH) if norm else nn.Identity()
        self.last = nn.BatchNorm1d(WIDTH) if norm else nn.Identity()
        self.gamma = None if gamma is None else nn.Parameter(gamma)
        self.what = what

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(self.last(self.two(self.what(self, self.norm(self.one(x)))))))


class Joined(nn.Module):
    """Channels of two different variances beside each other, and BatchNorm of all of them."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.one, self.more, self.out = nn.Linear(60, 200), nn.Linear(200, WIDTH - 200), nn.Linear(WIDTH, 1)
        self.norm, self.two = nn.BatchNorm1d(WIDTH) if norm else nn.Identity(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        both = self.norm(torch.cat([y, 3 * self.more(F.relu(y))], 1))
        return self.out(F.relu(self.two(F.relu(both))))


class Tokens(nn.Module):
    """Layers at positions, as in the MLP of a ViT; with `mixing`, also over them, as in MLP-Mixer."""

    def __init__(
        self, *, mixing: bool = False, embedding: bool = False, scale: bool = False, tokens: int = 60, width: int = 200
    ) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), 0.6)) if scale else None
        self.patch = nn.Linear(20, width)
        self.place = nn.Parameter(torch.randn(1, tokens, width)) if embedding else None
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.over, self.back = nn.Linear(tokens, 150), nn.Linear(150, tokens)
        self.up, self.down, self.out = nn.Linear(width, 300), nn.Linear(300, width), nn.Linear(width, 1)
        self.mixing = mixing

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x)
        if self.place is not None:
            x = x + self.place
        if self.mixing:
            y = self.back(F.gelu(self.over(self.norms[0](x).transpose(1, 2)))).transpose(1, 2)
            x = x + (y if self.gamma is None else self.gamma * y)
        x = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return self.out(self.norms[2](x).mean(1))


class Depthwise(nn.Module):
    """A block as in ConvNeXt: depthwise convolution, LayerNorm over the last dimension, Linear, LayerScale."""

    def __init__(self, channels: int = 120) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 2, 2)
        self.conv = nn.Conv2d(channels, channels, 5, padding=2, groups=channels)
        self.norm, self.last = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.gamma, self.out = nn.Parameter(torch.full((channels,), 0.5)), nn.Linear(channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.down(F.gelu(self.up(self.norm(self.conv(x).permute(0, 2, 3, 1))))) * self.gamma
        x = x + y.permute(0, 3, 1, 2)
        return self.out(F.relu(self.last(x.mean((2, 3)))))


def normed(norm: Callable[[], nn.Module]) -> nn.Module:
    """Two convolutions of 128 channels, each with a normalization."""
    layers = [nn.Conv2d(3, 128, 3), norm(), nn.ReLU(), nn.Conv2d(128, 128, 3), norm(), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 1))


def draw(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A network with weights of variance 2/fan-in and biases of 0.5."""
    torch.manual_seed(seed)
    model = make()
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.normal_(module.weight, std=math.sqrt(2 / module.weight[0].numel()))
            if module.bias is not None:
                nn.init.normal_(module.bias, std=math.sqrt(0.5))
    return model


def ratio(
    make: Callable[[], nn.Module], shape: tuple[int, ...], *, draws: int, samples: int, statistics: str = "frozen"
) -> tuple[float, tuple[str, ...]]:
    """Predicted over measured, each a mean over draws, on white inputs, for one output; and what is unseen."""
    predicted, found, unseen = 0.0, 0.0, ()
    for seed in range(draws):
        model = draw(make, seed)
        x = torch.randn(samples, *shape)
        prediction = predict(model, shape, samples=samples, statistics=statistics)
        predicted, unseen = predicted + prediction.lambda_max, prediction.unseen
        found += fisher_lambda_max(model, x, outputs=0, statistics=statistics, tolerance=1e-3)
    return predicted / found, unseen
