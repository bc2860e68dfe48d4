"""What `predict` does not understand is named."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.theory.reading_cases import WIDTH, Between, normed
from trimtab.theory.from_model import mean_field_prediction as predict


class Attention(nn.Module):
    """Attention written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(24, 72), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).reshape(len(x), 7, 3, 4, 6).permute(2, 0, 3, 1, 4).unbind(0)
        y = torch.softmax(q @ k.transpose(-2, -1), -1) @ v
        return self.out(y.transpose(1, 2).reshape(len(x), 7, 24).mean(1))


class Squeeze(nn.Module):
    """Squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc, self.out = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 1), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        x = x * self.fc(x.mean((2, 3), keepdim=True)).sigmoid()
        return self.out(x.mean((2, 3)))


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(24, 4, batch_first=True), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.out(x.mean(1))


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 1))
    model[2].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    ("model", "shape", "words"),
    [
        (Attention(), (7, 24), ["(matmul) are", "(softmax) is"]),
        (Whole(), (7, 24), ["attention (MultiheadAttention)"]),
        (Squeeze(), (3, 6, 6), ["mul of values of different shapes"]),
        (Between(lambda m, y: y * F.relu(m.branch(y))), (60,), ["mul of two values that depend on the input"]),
        (Between(lambda m, y: torch.cumsum(y, 1)), (60,), ["(cumsum)"]),
        (
            nn.Sequential(nn.Conv1d(3, 8, 1), nn.LayerNorm(9), nn.Flatten(), nn.Linear(72, 1)),
            (3, 9),
            ["over positions"],
        ),
        (
            nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(16, 1)),
            (7, 5),
            ["take for positions"],
        ),
        (Between(lambda m, y: F.elu(y * m.gamma), gamma=torch.randn(WIDTH)), (60,), ["gamma gives to an activation"]),
        (
            nn.Sequential(*normed(lambda: nn.Sequential(nn.ReLU(), nn.BatchNorm2d(128)))),
            (3, 8, 8),
            ["1.1 and 1 more give"],
        ),
        (tied(), (60,), ["2 is used more than once"]),
        (normed(lambda: nn.GroupNorm(16, 128)), (3, 8, 8), ["1 and 1 more (GroupNorm) take groups of 8 channels"]),
    ],
)
def test_what_is_not_understood_is_named(model: nn.Module, shape: tuple[int, ...], words: list[str]) -> None:
    unseen = predict(model, shape).unseen
    for word in words:
        assert any(word in sentence for sentence in unseen), unseen
