"""The noise of NoisyBatchNorm, recovered from its outputs and compared with Algorithm 1's distributions."""

import pytest
import torch
from scipy import stats
from torch import Tensor

from trimtab.norms import NoisyBatchNorm

CHANNELS, SAMPLES = 400, 500


def noise(seed: int, shape: tuple[int, ...] = (SAMPLES, CHANNELS), **settings: float) -> tuple[Tensor, Tensor]:
    """S and m of s·a + m: two layers with the same noise whose outputs a differ by 1 everywhere."""
    x = torch.randn(shape, dtype=torch.float64)
    a = torch.nn.functional.batch_norm(x, None, None, training=True)
    outputs = []
    for beta in (0.0, 1.0):
        layer = NoisyBatchNorm(shape[1], **settings).double()
        torch.nn.init.constant_(layer.bias, beta)
        torch.manual_seed(seed)
        outputs.append(layer(x).detach())
    s = outputs[1] - outputs[0]
    return s, outputs[0] - s * a


def test_shift_and_scale_have_the_distributions_of_algorithm_1() -> None:
    s, m = noise(0)
    centre_m = (m.amax(0) + m.amin(0)) / 2
    within = m - centre_m
    assert within.abs().max() <= 0.1
    assert stats.kstest(within[:, :50].flatten() / 0.1, stats.uniform(-1, 2).cdf).pvalue > 1e-3
    assert stats.kstest(centre_m / 0.5, stats.uniform(-1, 2).cdf).pvalue > 1e-3
    centre_s = s.mean(0)
    assert stats.kstest((s - centre_s).flatten() / 0.1, stats.norm.cdf).pvalue > 1e-3
    assert stats.kstest(centre_s, stats.uniform(1, 0.25).cdf).pvalue > 1e-3
    assert abs(torch.corrcoef(torch.stack([centre_m, centre_s]))[0, 1]) < 0.2


def test_space_counts_as_batch() -> None:
    """A channel's positions share the step's centre, and have noise of their own."""
    s, m = noise(0, shape=(4, 30, 8, 8))
    assert (m - m.mean((0, 2, 3), keepdim=True)).abs().max() < 0.15
    assert m.mean((0, 2, 3)).std() > 0.2
    assert m.flatten(2).std(2).min() > 0.03
    assert s.flatten(2).std(2).min() > 0.05


def test_each_step_and_each_channel_has_its_own() -> None:
    (_, first), (_, second) = noise(0), noise(1)
    assert abs(torch.corrcoef(torch.stack([first.mean(0), second.mean(0)]))[0, 1]) < 0.2


def test_settings_move_the_noise() -> None:
    s, m = noise(0, n_mu=2.0, n_sigma=3.0, r_mu=0.0, r_sigma=0.0)
    assert m.std(0).max() < 1e-10 and s.std(0).max() < 1e-10
    assert 1.8 < m.abs().max() <= 2 and 1 <= s.min() < 1.2 and 2.8 < s.max() <= 3


def test_none_in_evaluation() -> None:
    layer = NoisyBatchNorm(3).eval()
    x = torch.randn(5, 3)
    torch.testing.assert_close(layer(x), x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("setting", [{"n_mu": -1.0}, {"n_sigma": 0.5}, {"r_mu": -0.1}, {"r_sigma": -0.1}])
def test_impossible_settings(setting: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        NoisyBatchNorm(3, **setting)
