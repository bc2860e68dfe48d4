"""Settings of norms: β held fixed, Batch Renorm's schedule for a run, noise without a norm."""

from dataclasses import astuple

import pytest
import torch
from scipy import stats
from torch import nn

from trimtab.norms import NORMS, WITHOUT_BETA, BatchRenorm, Noise, NoisyBatchNorm, Norm, RenormLimits


@pytest.mark.parametrize("name", [name for name in NORMS if name not in WITHOUT_BETA])
def test_a_fixed_beta_stays_at_zero_and_changes_nothing_else(name: str) -> None:
    def stepped(fixed_beta: bool) -> tuple[nn.Module, torch.Tensor]:
        torch.manual_seed(0)
        layer = Norm(name, fixed_beta=fixed_beta).layer(4, 2)
        x = torch.randn(16, 4, 3, 3, requires_grad=True)
        y = layer(x)
        (y * torch.linspace(0, 1, 4).view(-1, 1, 1)).exp().mean().backward()
        torch.optim.SGD(layer.parameters(), lr=0.1).step()
        return layer, y

    (fixed, its), (free, other) = stepped(True), stepped(False)
    assert torch.equal(its, other)
    assert not fixed.get_parameter("bias").any() and free.get_parameter("bias").any()
    for tensor, theirs in zip(fixed.parameters(), free.parameters(), strict=True):
        if tensor is not fixed.bias:
            assert torch.equal(tensor, theirs)


@pytest.mark.parametrize("name", WITHOUT_BETA)
def test_there_is_no_beta_to_hold_fixed(name: str) -> None:
    with pytest.raises(ValueError, match=f"fixed_beta has no meaning for {name}, which has no β"):
        Norm(name, fixed_beta=True)


@pytest.mark.parametrize("steps", [160, 1600, 16_000, 160_000, 1_000_000])
def test_the_schedule_has_the_published_shape_in_a_run_of_any_length(steps: int) -> None:
    published, scaled = BatchRenorm(1), Norm("brn", renorm=RenormLimits().scaled(steps)).layer(1, 0)
    assert isinstance(scaled, BatchRenorm)
    share = min(steps / 160_000, 1.0)
    for place in (0.0, 0.02, 1 / 32, 0.1, 5 / 32, 0.2, 0.25, 0.7, 1.0):
        theirs = published.limits(torch.tensor(round(place * 160_000)))
        ours = scaled.limits(torch.tensor(place * 160_000 * share))
        for one, other in zip(ours, theirs, strict=True):
            assert float(one) == pytest.approx(float(other), abs=1e-5)


def test_without_a_schedule_of_its_own_it_is_the_published_one() -> None:
    layer = Norm("brn").layer(3, 0)
    assert isinstance(layer, BatchRenorm)
    found = layer.r_max, layer.d_max, layer.warmup, layer.r_steps, layer.d_steps
    assert found == astuple(RenormLimits()) == (3.0, 5.0, 5_000, 40_000, 25_000)


def test_a_schedule_is_for_brn_alone() -> None:
    with pytest.raises(ValueError, match="renorm has no meaning for bn; it is for brn"):
        Norm("bn", renorm=RenormLimits())


def test_the_noise_alone_is_that_after_batchnorm() -> None:
    x = torch.randn(64, 3, 4, 4)
    noisy, alone = NoisyBatchNorm(3), Noise()
    plain = nn.BatchNorm2d(3)
    torch.manual_seed(1)
    with_norm = noisy(x)
    torch.manual_seed(1)
    torch.testing.assert_close(with_norm, alone(plain(x)))


def test_noise_has_the_distributions_of_algorithm_1() -> None:
    torch.manual_seed(0)
    layer = Noise()
    zeros, ones = torch.zeros(20, 4000), torch.ones(20, 4000)
    torch.manual_seed(3)
    shift = layer(zeros)
    torch.manual_seed(3)
    scale = layer(ones) - shift
    # m − its mean over samples is U(−0.1, 0.1) less a small mean; the means are those of U(−0.5, 0.5) and U(1, 1.25)
    assert stats.kstest(shift[0].numpy(), stats.uniform(-0.6, 1.2).cdf).pvalue < 0.01  # not one draw for all
    s, m = layer.draw(torch.empty(1, 20_000))
    mu = stats.uniform(-0.5, 1).rvs(200_000, random_state=0) + stats.uniform(-0.1, 0.2).rvs(200_000, random_state=1)
    sigma = stats.uniform(1, 0.25).rvs(200_000, random_state=2) + stats.norm(0, 0.1).rvs(200_000, random_state=3)
    assert stats.ks_2samp(m[0].numpy(), mu).pvalue > 0.01
    assert stats.ks_2samp(s[0].numpy(), sigma).pvalue > 0.01
    assert (shift.mean(0).abs() < 0.56).all() and (scale.mean(0) > 0.9).all()  # each channel has its own
    layer.eval()
    assert layer(ones) is ones
