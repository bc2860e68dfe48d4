"""Splits, validation, statistics, the data sets that need no files."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits as raw_digits

from trimtab.data import Split, digits, gaussian, load
from trimtab.data.dataset import channel_statistics


def test_split() -> None:
    split = Split(torch.arange(12).view(4, 3), torch.tensor([0, 1, 2, 3]))
    assert len(split) == 4
    taken = split.take(torch.tensor([3, 1]))
    assert taken.inputs.tolist() == [[9, 10, 11], [3, 4, 5]]
    assert taken.targets.tolist() == [3, 1]
    assert split.to("cpu").inputs.data_ptr() == split.inputs.data_ptr()
    assert split.to("meta").inputs.device.type == split.to("meta").targets.device.type == "meta"
    with pytest.raises(ValueError, match="a target for each input, not 3 for 4"):
        Split(torch.zeros(4, 3), torch.zeros(3))


def test_digits_are_those_of_scikit_learn_in_a_fixed_order() -> None:
    ours = load("digits")
    raw = raw_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0)).numpy()
    assert ours.train.inputs.dtype == torch.uint8
    assert ours.input_shape == (1, 8, 8)
    assert ours.classes == 10
    assert np.array_equal(ours.train.inputs[:, 0], raw.images[order[:1397]])
    assert np.array_equal(ours.test.inputs[:, 0], raw.images[order[1397:]])
    assert np.array_equal(ours.test.targets, raw.target[order[1397:]])
    assert ours.mean == pytest.approx([(raw.images[order[:1397]] / 16).mean()])
    assert ours.std == pytest.approx([(raw.images[order[:1397]] / 16).std()])


def test_digits_are_the_same_if_scikit_learn_keeps_them_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = digits._numbers()
    monkeypatch.setattr(digits.Path, "is_file", lambda path: False)
    assert np.array_equal(digits._numbers(), quick)


def test_validation_is_the_last_part_or_a_drawn_one() -> None:
    digits = load("digits")
    train, validation = digits.with_validation(397)
    assert torch.equal(train.inputs, digits.train.inputs[:1000])
    assert torch.equal(validation.targets, digits.train.targets[1000:])
    everything, nothing = digits.with_validation(0)
    assert (len(everything), len(nothing)) == (1397, 0)

    numbered = Split(torch.arange(1397), torch.arange(1397))
    drawn = type(digits)(name="n", train=numbered, test=numbered, classes=0, scale=1.0, mean=(0.0,), std=(1.0,))
    rest, chosen = drawn.with_validation(397, seed=3)
    assert len(chosen) == 397
    assert sorted(rest.targets.tolist() + chosen.targets.tolist()) == list(range(1397))
    assert torch.equal(chosen.targets, drawn.with_validation(397, seed=3)[1].targets)
    assert not torch.equal(chosen.targets, drawn.with_validation(397, seed=4)[1].targets)
    assert chosen.targets.sort().values.tolist() != list(range(1000, 1397))


@pytest.mark.parametrize("size", [-1, 1397, 5000])
def test_validation_of_an_impossible_size(size: int) -> None:
    with pytest.raises(ValueError, match=f"from 0 to 1396 for digits, not {size}"):
        load("digits").with_validation(size)


@given(
    st.integers(1, 5),
    st.sampled_from([(), (3,), (2, 3), (2, 2, 2)]),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_statistics_against_numpy(samples: int, space: tuple[int, ...], channels: int, whole: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    shape = (samples, channels, *space)
    array = random.integers(0, 256, shape, np.uint8) if whole else random.normal(size=shape).astype(np.float32)
    mean, std = channel_statistics(torch.from_numpy(array), 255.0)
    axes = (0, *range(2, array.ndim))
    assert mean == pytest.approx((array.astype(np.float64) / 255).mean(axes), abs=1e-12)
    assert std == pytest.approx((array.astype(np.float64) / 255).std(axes), abs=1e-8)


def test_statistics_over_several_chunks() -> None:
    array = np.random.default_rng(0).integers(0, 256, (9001, 2, 3), np.uint8)
    mean, std = channel_statistics(torch.from_numpy(array), 255.0)
    assert mean == pytest.approx((array / 255).mean((0, 2)), rel=1e-12)
    assert std == pytest.approx((array / 255).std((0, 2)), rel=1e-12)


def test_gaussian_regression_is_linear_with_one_matrix() -> None:
    data = load("gaussian")
    assert (data.classes, data.scale, data.input_shape, len(data.train)) == (0, 1.0, (10,), 1000)
    x, y = data.train.inputs.double(), data.train.targets.double()
    transposed = torch.linalg.lstsq(x, y).solution
    torch.testing.assert_close(data.test.inputs.double() @ transposed, data.test.targets.double(), rtol=0, atol=1e-5)
    # Entries of N(0, 1): 1000 × 10 of x, 100 of A; bounds of four standard errors.
    assert abs(x.mean().item()) < 4 / 100
    assert abs(x.square().mean().item() - 1) < 4 * 2**0.5 / 100
    assert abs(transposed.mean().item()) < 4 / 10
    assert abs(transposed.square().mean().item() - 1) < 4 * 2**0.5 / 10
    assert not torch.equal(data.train.inputs, data.test.inputs)
    assert torch.equal(gaussian().train.targets, data.train.targets)
    assert not torch.equal(gaussian(seed=1).train.targets, data.train.targets)
    assert gaussian(samples=7, dimensions=3).train.targets.shape == (7, 3)
