"""Where one of our layers becomes one of torch's: outputs, gradients, running statistics and evaluation agree."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.norms.cases import NO_NOISE
from trimtab.norms import BatchRenorm, FourThingsBatchNorm, GhostBatchNorm, NoisyBatchNorm, StopGradientBatchNorm

SHAPES = {0: (6, 4), 1: (6, 4, 3), 2: (6, 4, 2, 3), 3: (6, 4, 2, 1, 3)}
BATCHNORMS = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
SAME_AS_BATCHNORM: dict[str, Callable[[], nn.Module]] = {
    "renorm without room": lambda: BatchRenorm(4, r_max=1, d_max=0, warmup=0, r_steps=0, d_steps=0, momentum=0.1),
    "renorm warming up": lambda: BatchRenorm(4, momentum=0.1),
    "one ghost": lambda: GhostBatchNorm(4, ghost_size=6),
    "a ghost larger than the batch": lambda: GhostBatchNorm(4, ghost_size=50),
    "no noise": lambda: NoisyBatchNorm(4, **NO_NOISE),
}


def gradients(layer: nn.Module, x: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    x = x.clone().requires_grad_()
    y = layer(x)
    return y, *torch.autograd.grad(y, (x, layer.weight, layer.bias), v)


@pytest.mark.parametrize("space", SHAPES)
@pytest.mark.parametrize("name", SAME_AS_BATCHNORM)
def test_batchnorm(name: str, space: int) -> None:
    torch.manual_seed(0)
    ours, torchs = SAME_AS_BATCHNORM[name](), BATCHNORMS[space](4)
    nn.init.normal_(torchs.weight)
    nn.init.normal_(torchs.bias)
    ours.load_state_dict(torchs.state_dict())  # the names are the same too
    for _ in range(3):
        x, v = 3 * torch.randn(SHAPES[space]) + 1, torch.randn(SHAPES[space])
        for a, b in zip(gradients(ours, x, v), gradients(torchs, x, v), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.state_dict(), torchs.state_dict())
    torch.testing.assert_close(ours.eval()(x), torchs.eval()(x), rtol=1e-4, atol=1e-5)


def test_stop_gradient_is_batchnorm_but_for_the_gradient() -> None:
    torch.manual_seed(0)
    ours, torchs = StopGradientBatchNorm(4), nn.BatchNorm2d(4)
    x, v = torch.randn(SHAPES[2]), torch.randn(SHAPES[2])
    (y, by_x, *by_parameters), (y_, by_x_, *by_parameters_) = gradients(ours, x, v), gradients(torchs, x, v)
    torch.testing.assert_close([y, *by_parameters], [y_, *by_parameters_], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(by_x, by_x_, atol=1e-2)
    torch.testing.assert_close(ours.state_dict(), torchs.state_dict())


@pytest.mark.parametrize("samples", [1, 5])
@pytest.mark.parametrize("space", SHAPES)
def test_four_things_with_ghosts_of_one_sample_is_groupnorm(space: int, samples: int) -> None:
    """In evaluation too, since α is then 1; so it trains on one sample (bnp paper, Sec. 5)."""
    torch.manual_seed(0)
    ours, torchs = FourThingsBatchNorm(4, ghost_size=1, group_size=2), nn.GroupNorm(2, 4)
    x, v = torch.randn(samples, *SHAPES[space][1:]), torch.randn(samples, *SHAPES[space][1:])
    for _ in range(2):
        for a, b in zip(gradients(ours, x, v), gradients(torchs, x, v), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
        ours.eval()


def test_four_things_without_any_of_them_is_batchnorm() -> None:
    """Its running mean square less the squared mean is the biased variance, where every batch is the same."""
    torch.manual_seed(0)
    ours, torchs = FourThingsBatchNorm(4, ghost_size=6, alpha=0.0, momentum=1.0), nn.BatchNorm2d(4, momentum=1.0)
    x, v = torch.randn(SHAPES[2]), torch.randn(SHAPES[2])
    for a, b in zip(gradients(ours, x, v), gradients(torchs, x, v), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    torchs.running_var *= 35 / 36
    torch.testing.assert_close(ours.eval()(x), torchs.eval()(x), rtol=1e-4, atol=1e-5)


def test_four_things_wants_weight_decay_on_gamma_and_beta() -> None:
    assert FourThingsBatchNorm(4).decay_gamma_beta
    assert not GhostBatchNorm(4).decay_gamma_beta


def test_renorm_in_the_end_trains_on_what_it_evaluates() -> None:
    """With wide limits the output in training is that of evaluation before the step (bnp paper, eq. 3)."""
    torch.manual_seed(0)
    layer = BatchRenorm(4, r_max=1e6, d_max=1e6, warmup=0, r_steps=0, d_steps=0)
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2)
    x = torch.randn(SHAPES[2])
    expected = layer.eval()(x)
    torch.testing.assert_close(layer.train()(x), expected, rtol=1e-4, atol=1e-5)


def test_renorms_published_schedule() -> None:
    layer = BatchRenorm(4)
    steps = torch.tensor([1, 5_000, 15_000, 22_500, 25_000, 40_000, 10**6])
    r_max, d_max = layer.limits(steps)
    torch.testing.assert_close(r_max, torch.tensor([1, 1, 1 + 2 * 10 / 35, 2, 1 + 2 * 20 / 35, 3, 3]))
    torch.testing.assert_close(d_max, torch.tensor([0, 0, 2.5, 5 * 17.5 / 20, 5, 5, 5]))
    assert layer.momentum == 0.01
