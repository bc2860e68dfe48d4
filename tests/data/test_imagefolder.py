"""An image folder in ImageNet's layout."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from trimtab.data import Batches, DataError, FolderBatches, ImageFolder, batches, load
from trimtab.data.decode import decode, middle, random_box

CLASSES = ("n01", "n02", "n03")


def photograph(path: Path, seed: int, size: tuple[int, int] = (40, 30), mode: str = "RGB") -> None:
    """A smooth image, so that resizing has something to keep."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (4, 4, 3), np.uint8))
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse.resize(size, Image.Resampling.BICUBIC).convert(mode).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number, label in enumerate(CLASSES):
        for image in range(4):
            mode = "L" if image == 3 else "RGB"
            photograph(
                tmp_path / "imagenet" / "train" / label / f"{label}_{image}.JPEG", 10 * number + image, mode=mode
            )
        photograph(tmp_path / "imagenet" / "val" / label / f"v{number}.png", 100 + number)
    (tmp_path / "imagenet" / "train" / "n01" / "notes.txt").write_text("not an image")
    return tmp_path


def folder(root: Path) -> ImageFolder:
    data = load("imagefolder", root)
    assert isinstance(data, ImageFolder)
    return data


def collect(epochs: Batches, start: int = 0) -> list[tuple[Tensor, Tensor]]:
    return list(epochs.epoch(epochs.plan(), start))


def test_the_files_and_their_classes(root: Path) -> None:
    data = folder(root)
    assert (data.classes, data.labels, data.input_shape, data.scale) == (3, CLASSES, (3, 224, 224), 255.0)
    assert (len(data.train), len(data.test), len(data.files)) == (12, 3, 15)
    for split in (data.train, data.test):
        for file, target in zip(split.inputs.tolist(), split.targets.tolist(), strict=True):
            assert Path(data.files[file]).parent.name == CLASSES[target]
    assert sorted(data.train.inputs.tolist()) == list(range(12))
    train, validation = data.with_validation(5)
    assert len(set(validation.targets.tolist())) > 1  # mixed, though the folder is sorted
    assert len(train) == 7


@pytest.mark.parametrize("place", ["imagefolder", "imagenet", "."])
def test_where_it_may_lie(tmp_path: Path, place: str) -> None:
    for part in ("train", "val"):
        photograph(tmp_path / place / part / "a" / "x.jpg", 0)
    assert len(folder(tmp_path).train) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_for_evaluation(root: Path, workers: int) -> None:
    data = folder(root)
    epochs = batches(data.test, 2, dataset=data, workers=workers)
    assert isinstance(epochs, FolderBatches)
    assert len(epochs) == 2
    inputs, targets = (torch.cat(part) for part in zip(*collect(epochs), strict=True))
    assert targets.tolist() == [0, 1, 2]
    assert inputs.shape == (3, 3, 224, 224)
    mean, std = (torch.tensor(part).view(3, 1, 1) for part in (data.mean, data.std))
    for one, file in zip(inputs, data.test.inputs.tolist(), strict=True):
        expected = (decode(data.files[file], 224, None) / 255 - mean) / std
        torch.testing.assert_close(one, expected)


def test_augmented_epochs_depend_on_the_generator_only_and_resume(root: Path) -> None:
    data = folder(root)

    def epochs(seed: int, workers: int) -> Batches:
        generator = torch.Generator().manual_seed(seed)
        return batches(data.train, 5, dataset=data, generator=generator, augment=True, workers=workers)

    torch.manual_seed(0)
    before = torch.get_rng_state()
    here, there, resumed = collect(epochs(1, 0)), collect(epochs(1, 2)), collect(epochs(1, 1), start=1)
    assert torch.equal(torch.get_rng_state(), before)
    for expected, found in ((here, there), (here[1:], resumed)):
        for (inputs, targets), (old_inputs, old_targets) in zip(found, expected, strict=True):
            assert torch.equal(inputs, old_inputs) and torch.equal(targets, old_targets)
    assert not torch.equal(collect(epochs(2, 0))[0][0], here[0][0])


def test_the_parts_of_a_batch_make_the_batch(root: Path) -> None:
    """The last batch has fewer images than there are parts."""
    data = folder(root)

    def epoch(part: tuple[int, int]) -> list[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(0)
        options = {"generator": generator, "augment": True, "workers": 0, "part": part}
        return collect(batches(data.train, 5, dataset=data, **options), start=1)  # type: ignore[arg-type]

    shares = [epoch((number, 4)) for number in range(4)]
    assert [len(targets) for _, targets in shares[-1]] != [len(targets) for _, targets in shares[0]]
    for whole, *parts in zip(epoch((0, 1)), *shares, strict=True):
        for ours, theirs in zip(map(torch.cat, zip(*parts, strict=True)), whole, strict=True):
            assert torch.equal(ours, theirs)


def test_the_last_batch_can_be_left_out(root: Path) -> None:
    data = folder(root)
    epochs = batches(data.train, 5, dataset=data, drop_last=True, workers=0, normalize="unit")
    assert [len(targets) for _, targets in epochs] == [5, 5] == [5] * len(epochs)


def test_the_middle_is_what_resizing_and_cropping_gives(tmp_path: Path) -> None:
    photograph(tmp_path / "wide.png", 3, (600, 400))
    with Image.open(tmp_path / "wide.png") as image:
        resized = image.resize((384, 256), Image.Resampling.BILINEAR)
    expected = np.asarray(resized.crop((80, 16, 304, 240))).transpose(2, 0, 1).astype(int)
    found = decode(str(tmp_path / "wide.png"), 224, None).numpy().astype(int)
    assert np.abs(found - expected).max() <= 2
    assert np.abs(found - expected[:, :, ::-1]).max() > 50


def test_flips(tmp_path: Path) -> None:
    """Crops of an image that brightens to the right brighten to the right, or to the left if flipped."""
    path = tmp_path / "ramp.png"
    Image.fromarray(np.tile(np.arange(200, dtype=np.uint8), (100, 1))).save(path)
    rising = [bool((image := decode(str(path), 16, seed).int())[0, 0, -1] > image[0, 0, 0]) for seed in range(100)]
    assert 30 < sum(rising) < 70


@given(st.integers(1, 500), st.integers(1, 500), st.integers(0, 2**62))
def test_random_boxes_lie_inside(width: int, height: int, seed: int) -> None:
    for left, top, right, bottom in (
        random_box(width, height, torch.Generator().manual_seed(seed)),
        middle(width, height),
    ):
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height


def test_random_boxes_have_the_usual_areas_and_shapes() -> None:
    generator = torch.Generator().manual_seed(0)
    boxes = np.array([random_box(1000, 1000, generator) for _ in range(2000)])
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area, ratio = width * height / 1e6, width / height
    assert 0.079 < area.min() < 0.1 and area.max() > 0.95
    assert 0.74 < ratio.min() < 0.76 and 1.32 < ratio.max() < 1.34
    assert abs(np.log(ratio).mean()) < 0.02


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("content", [b"", b"<html>", "cut"])
def test_a_broken_image_is_named_in_one_sentence(root: Path, workers: int, content: bytes | str) -> None:
    data = folder(root)
    broken = Path(data.files[int(data.test.inputs[1])])
    broken.write_bytes(content if isinstance(content, bytes) else broken.read_bytes()[:200])
    with pytest.raises(DataError, match=rf"^\S+{broken.name} cannot be decoded: [^\n]+\.$"):
        list(batches(data.test, 2, dataset=data, workers=workers))


def test_bad_layouts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"looked in .*imagenet.* for train/CLASS/\*\.JPEG and val/CLASS"):
        load("imagefolder", tmp_path)
    photograph(tmp_path / "train" / "a" / "x.jpg", 0)
    with pytest.raises(DataError, match=r"imagefolder was not found: looked in \S+ for"):
        load("imagefolder", tmp_path)
    photograph(tmp_path / "val" / "x.jpg", 0)
    with pytest.raises(DataError, match="val has no folders of classes"):
        load("imagefolder", tmp_path)
    (tmp_path / "val" / "b").mkdir()
    with pytest.raises(DataError, match=r"val/b is a class that \S+train does not have"):
        load("imagefolder", tmp_path)
    (tmp_path / "val" / "b").rename(tmp_path / "val" / "a")
    with pytest.raises(DataError, match=r"val has no images"):
        load("imagefolder", tmp_path)


def test_plain_batches_refuse_file_numbers(root: Path) -> None:
    data = folder(root)
    with pytest.raises(ValueError, match=r"come from trimtab\.data\.batches"):
        Batches(data.train, 2, dataset=data)


def test_without_pillow(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    data = folder(root)
    with pytest.raises(DataError, match=r"imagefolder needs Pillow; pip install '\.\[lab\]'"):
        list(batches(data.test, 2, dataset=data, workers=0))
