"""Batches: order, normalization, augmentation, resumption."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from trimtab.data import Batches, Dataset, Split, batches, gaussian
from trimtab.data.epochs import crop_and_flip, padding


def made(samples: int = 23, shape: tuple[int, ...] = (3, 14, 15), *, flips: bool = True) -> Dataset:
    """Random images whose target is their number."""
    inputs = torch.randint(0, 256, (samples, *shape), generator=torch.Generator().manual_seed(5), dtype=torch.uint8)
    split = Split(inputs, torch.arange(samples))
    mean, std = tuple(0.1 * c + 0.3 for c in range(shape[0])), tuple(0.1 * c + 0.2 for c in range(shape[0]))
    return Dataset(name="made", train=split, test=split, classes=samples, scale=255.0, mean=mean, std=std, flips=flips)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_number(epoch: Iterator[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    pairs = list(epoch)
    return torch.cat([inputs for inputs, _ in pairs]), torch.cat([targets for _, targets in pairs])


@given(st.integers(1, 30), st.integers(1, 35), st.booleans(), st.integers(0, 1000))
def test_an_epoch_sees_each_sample_once(samples: int, batch_size: int, drop_last: bool, seed: int) -> None:
    data = made(samples, (1, 3, 3))
    if drop_last and batch_size > samples:
        with pytest.raises(ValueError, match="no batch of"):
            Batches(data.train, batch_size, dataset=data, generator=seeded(seed), drop_last=True)
        return
    epochs = Batches(data.train, batch_size, dataset=data, generator=seeded(seed), drop_last=drop_last)
    sizes = [len(targets) for _, targets in epochs]
    seen = torch.cat([targets for _, targets in epochs]).tolist()
    assert len(sizes) == len(epochs)
    assert all(size == batch_size for size in sizes[: len(sizes) - (not drop_last)])
    assert len(set(seen)) == len(seen) == (samples // batch_size * batch_size if drop_last else samples)


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 3))
def test_the_parts_of_a_batch_make_the_batch(batch_size: int, parts: int, start: int) -> None:
    """Also of a last batch that is not full, and where there are more parts than samples."""
    data = made(samples=13, shape=(1, 7, 7))
    start = min(start, 13 // batch_size)

    def epoch(part: tuple[int, int]) -> list[tuple[Tensor, Tensor]]:
        epochs = Batches(data.train, batch_size, dataset=data, generator=seeded(), augment=True, part=part)
        return list(epochs.epoch(epochs.plan(), start))

    for whole, *shares in zip(epoch((0, 1)), *(epoch((number, parts)) for number in range(parts)), strict=True):
        sizes = [len(targets) for _, targets in shares]
        assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)
        for ours, theirs in zip(by_number(iter(shares)), whole, strict=True):
            assert torch.equal(ours, theirs)


def test_the_order_is_new_in_each_epoch_and_comes_from_the_generator_alone() -> None:
    data = made()
    epochs = Batches(data.train, 4, dataset=data, generator=seeded(), augment=True)
    first, second = by_number(iter(epochs)), by_number(iter(epochs))
    assert not torch.equal(first[1], second[1])
    torch.manual_seed(123)
    before = torch.get_rng_state()
    again = Batches(data.train, 4, dataset=data, generator=seeded(), augment=True)
    for old in (first, second):
        new = by_number(iter(again))
        assert torch.equal(new[0], old[0]) and torch.equal(new[1], old[1])
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_generator_the_order_is_the_splits() -> None:
    data = made()
    inputs, targets = by_number(iter(Batches(data.train, 4, dataset=data, normalize="unit")))
    assert targets.tolist() == list(range(23))
    assert torch.equal(inputs, data.train.inputs / 255)


def test_normalization_against_numpy() -> None:
    data = made()
    unit = data.train.inputs.numpy().astype(np.float64) / 255
    mean, std = np.array(data.mean)[:, None, None], np.array(data.std)[:, None, None]
    for normalize, expected in (("unit", unit), ("standard", (unit - mean) / std)):
        options: dict[str, Any] = {"normalize": normalize}
        inputs, _ = by_number(iter(Batches(data.train, 5, dataset=data, **options)))
        assert inputs.dtype == torch.float32
        np.testing.assert_allclose(inputs.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_the_raw_data_stay_as_they_are() -> None:
    for data in (made(), gaussian()):
        before = data.train.inputs.clone()
        list(Batches(data.train, 8, dataset=data, generator=seeded(), augment=data.classes > 0))
        assert torch.equal(data.train.inputs, before)


def test_vectors_are_normalized_feature_by_feature() -> None:
    data = gaussian()
    inputs, targets = next(iter(Batches(data.train, 1000, dataset=data)))
    torch.testing.assert_close(inputs.mean(0), torch.zeros(10), atol=1e-5, rtol=0)
    torch.testing.assert_close(inputs.std(0, correction=0), torch.ones(10))
    raw, _ = next(iter(Batches(data.train, 1000, dataset=data, normalize="unit")))
    assert torch.equal(raw, data.train.inputs)
    assert torch.equal(targets, data.train.targets)


def test_a_constant_channel_becomes_zero() -> None:
    split = Split(torch.full((4, 1, 2, 2), 51, dtype=torch.uint8), torch.arange(4))
    data = Dataset(name="flat", train=split, test=split, classes=4, scale=255.0, mean=(0.2,), std=(0.0,))
    inputs, _ = next(iter(Batches(split, 4, dataset=data)))
    torch.testing.assert_close(inputs, torch.zeros(4, 1, 2, 2), atol=1e-6, rtol=0)


@given(
    st.integers(1, 6), st.integers(1, 3), st.integers(7, 32), st.integers(7, 32), st.integers(1, 9), st.integers(0, 99)
)
def test_augmentation_against_one_image_at_a_time(
    samples: int, channels: int, height: int, width: int, batch: int, seed: int
) -> None:
    random = seeded(seed)
    images = torch.randint(1, 256, (samples, channels, height, width), generator=random, dtype=torch.uint8)
    index = torch.randint(0, samples, (batch,), generator=random)
    pad = padding((height, width))
    begin = torch.randint(0, 2 * pad + 1, (batch, 2), generator=random)
    draws = torch.cat([begin, torch.randint(0, 2, (batch, 1), generator=random)], 1)
    result = crop_and_flip(images, index, draws)
    assert result.dtype == torch.uint8
    for one, number, (row, column, flip) in zip(result, index.tolist(), draws.tolist(), strict=True):
        padded = np.pad(images[number].numpy(), ((0, 0), (pad, pad), (pad, pad)))
        crop = padded[:, row : row + height, column : column + width]
        assert np.array_equal(one.numpy(), crop[:, :, ::-1] if flip else crop)


def test_padding_is_four_for_the_usual_sizes() -> None:
    assert [padding((3, side, side)) for side in (8, 28, 32, 224)] == [1, 4, 4, 4]


@pytest.mark.parametrize("flips", [True, False])
def test_crops_and_flips_are_uniform(flips: bool) -> None:
    """A single bright pixel in the middle of the left half shows where an image went."""
    image = torch.zeros(1, 32, 32, dtype=torch.uint8)
    image[0, 16, 8] = 255
    split = Split(image.expand(8100, 1, 32, 32), torch.zeros(8100))
    data = Dataset(name="dot", train=split, test=split, classes=1, scale=255.0, mean=(0.0,), std=(1.0,), flips=flips)
    inputs, _ = next(iter(Batches(split, 8100, dataset=data, generator=seeded(), augment=True, normalize="unit")))
    places = inputs[:, 0].nonzero()
    assert len(places) == 8100
    flipped = places[:, 2] >= 16
    assert abs(int(flipped.sum()) - 4050 * flips) < 4 * 45 * flips + 1  # four standard deviations
    column = torch.where(flipped, 31 - places[:, 2], places[:, 2]) - 4
    counts = ((places[:, 1] - 12) * 9 + column).bincount(minlength=81)
    assert len(counts) == 81
    assert (counts - 100).abs().max() < 50  # 100 of each on average, with a standard deviation of 10


@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize("stop", [0, 1, 3, 6])
def test_an_epoch_resumes_in_the_middle(augment: bool, stop: int) -> None:
    data = made()

    def epochs(generator: torch.Generator) -> Batches:
        return batches(data.train, 4, dataset=data, generator=generator, augment=augment)

    generator = seeded(7)
    whole = epochs(generator)
    list(whole)
    saved = generator.get_state()
    expected = list(whole)[stop:] + list(whole)

    generator = seeded(99)
    generator.set_state(saved)
    resumed = epochs(generator)
    found = list(resumed.epoch(resumed.plan(), stop)) + list(resumed)
    assert len(found) == len(expected) == 12 - stop
    for (inputs, targets), (old_inputs, old_targets) in zip(found, expected, strict=True):
        assert torch.equal(inputs, old_inputs) and torch.equal(targets, old_targets)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch size must be 1 or more, not 0"),
        ({"batch_size": 24, "drop_last": True}, "no batch of 24 among 23 samples"),
        ({"normalize": "whiten"}, "normalize must be one of unit, standard, pixel, not 'whiten'"),
        ({"augment": True}, "Augmentation needs a generator"),
        ({"augment": True, "generator": seeded(), "dataset": gaussian(), "split": gaussian().train}, "is for images"),
        ({"split": Split(torch.zeros(2, 1, 8, 8), torch.zeros(2))}, r"shape \(1, 8, 8\) instead of made's \(3, 14, 15"),
    ],
)
def test_bad_settings(options: dict[str, Any], message: str) -> None:
    data = made()
    with pytest.raises(ValueError, match=message):
        Batches(**({"split": data.train, "batch_size": 4, "dataset": data} | options))


@pytest.mark.parametrize("start", [-1, 7])
def test_an_epoch_cannot_start_outside_itself(start: int) -> None:
    epochs = Batches(made().train, 4, dataset=made())
    with pytest.raises(ValueError, match=f"An epoch of 6 batches cannot start at batch {start}"):
        epochs.epoch(epochs.plan(), start)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_batches_on_the_gpu_are_those_on_the_cpu() -> None:
    data = made(300, (3, 32, 32))
    there, here = (
        Batches(data.train, 32, dataset=data, generator=seeded(), augment=True, device=device)
        for device in ("cuda", "cpu")
    )
    for (inputs, targets), (expected, numbers) in zip(there, here, strict=True):
        assert inputs.device.type == targets.device.type == "cuda"
        torch.testing.assert_close(inputs.cpu(), expected)
        assert torch.equal(targets.cpu(), numbers)
    with pytest.raises(ValueError, match="generator must be on the CPU, not on cuda"):
        Batches(data.train, 32, dataset=data, generator=torch.Generator("cuda"))
