"""Is a file the official one?

Checksums are of the uncompressed content, so that a file compressed anew, or not at all, is still known. For a few
files only the checksum of the official compressed form is known; of these another form is read if its numbers of
samples per class are the official ones, with a warning that its pixels are not verified.
"""

import hashlib
from pathlib import Path

from torch import Tensor

from trimtab.data.errors import DataError, OtherDataError
from trimtab.data.files import Content
from trimtab.notice import warn_user

# By data set and file, MD5 of the content.
CONTENT = {
    ("mnist", "train-images-idx3-ubyte"): "6bbc9ace898e44ae57da46a324031adb",
    ("mnist", "train-labels-idx1-ubyte"): "a25bea736e30d166cdddb491f175f624",
    ("mnist", "t10k-images-idx3-ubyte"): "2646ac647ad5339dbf082846283269ea",
    ("mnist", "t10k-labels-idx1-ubyte"): "27ae3e4e09519cfbb04c329615203637",
    ("cifar10", "data_batch_1.bin"): "5dd7e06a14cb22eb9f671a540d1b7c25",
    ("cifar10", "data_batch_2.bin"): "5ea93a67294ea407fff1d09f752e9692",
    ("cifar10", "data_batch_3.bin"): "942cd6a4bcdd0dd3c604fbe906cb4421",
    ("cifar10", "data_batch_4.bin"): "ae636b3ba5c66a11e91e8cb52e771fcb",
    ("cifar10", "data_batch_5.bin"): "53f37980c15c3d472c316c40844f3f0d",
    ("cifar10", "test_batch.bin"): "803d5f7f4d78ea53de84dbe85f74fb6d",
    ("cifar10", "data_batch_1"): "c99cafc152244af753f735de768cd75f",
    ("cifar10", "data_batch_2"): "d4bba439e000b95fd0a9bffe97cbabec",
    ("cifar10", "data_batch_3"): "54ebc095f3ab1f0389bbae665268c751",
    ("cifar10", "data_batch_4"): "634d18415352ddfa80567beed471001a",
    ("cifar10", "data_batch_5"): "482c414d41f54cd18b22e5b47cb7c3cb",
    ("cifar10", "test_batch"): "40351d587109b95175f43aff81a1287e",
    ("cifar100", "train"): "16019d7e3df5f24257cddd939b257f8d",
    ("cifar100", "test"): "f0ef6b0ae62326f3e7ffdfab6717acfc",
}

# By data set and file, MD5 of the compressed form it is distributed in, where the content's is not known.
PACKED = {
    ("fashion-mnist", "train-images-idx3-ubyte"): "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    ("fashion-mnist", "train-labels-idx1-ubyte"): "25c81989df183df01b3e8a0aad5dffbe",
    ("fashion-mnist", "t10k-images-idx3-ubyte"): "bef4ecab320f06d8554ea6380940ec79",
    ("fashion-mnist", "t10k-labels-idx1-ubyte"): "bb300cfdad3c16e7a12a480ee83cd310",
    ("cifar100", "train.bin"): "03b5dce01913d631647c71ecec9e9cb8",
    ("cifar100", "test.bin"): "03b5dce01913d631647c71ecec9e9cb8",
}


def verify(dataset: str, name: str, content: Content) -> bool:
    """Whether a file is known to be the official one.

    Returns:
        True if a checksum says so, False if none can (the content's is not known, and it is not in the official
        compressed form).

    Raises:
        DataError: A checksum says that it is another file.
    """
    actual = hashlib.md5(content.data, usedforsecurity=False).hexdigest()
    expected = CONTENT.get((dataset, name))
    if actual == expected:
        return True
    for (other, file), checksum in CONTENT.items():
        if actual == checksum:
            raise OtherDataError(
                f"{content.where} is {file} of {other}, not {name} of {dataset}; put the right file there."
            )
    if expected is not None:
        raise DataError(
            f"{content.where} is not the official {name} of {dataset}: the MD5 of its content should be {expected} "
            f"and is {actual}; fetch it again."
        )
    return content.packed is not None and md5(content.packed) == PACKED.get((dataset, name))


def accept_unverified(wheres: list[str], targets: Tensor, classes: int, each: int) -> None:
    """Let files without a known checksum pass, with a warning, if each class has its official number of samples."""
    counts = targets.bincount(minlength=classes).tolist()
    if counts != [each] * classes:
        wrong = next(number for number, count in enumerate(counts) if count != each)
        raise DataError(
            f"{' and '.join(wheres)} cannot be the official data: class {wrong} has {counts[wrong]} samples "
            f"instead of {each}; fetch them again."
        )
    warn_user(
        f"{' and '.join(wheres)}: the form is right, but there is no checksum to verify the content by; "
        "use the compressed files as they are distributed to have it verified."
    )


def md5(path: Path) -> str:
    """The MD5 of a file as it lies there."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
