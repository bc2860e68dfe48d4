"""Where data sets are fetched from."""

from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.data.checksums import PACKED


@dataclass(frozen=True, slots=True)
class Source:
    """One official file.

    Attributes:
        path: Where it goes, from the folder of the data sets; `load` looks there first.
        urls: Where it is, in the order in which they are tried.
        size: Its bytes.
        md5: Its checksum, as it is distributed.
    """

    path: str
    urls: tuple[str, ...]
    size: int
    md5: str


def _idx(name: str, homes: tuple[str, ...], files: Mapping[str, tuple[int, str]]) -> tuple[Source, ...]:
    return tuple(
        Source(f"{name}/{file}.gz", tuple(f"{home}/{file}.gz" for home in homes), size, md5)
        for file, (size, md5) in files.items()
    )


def _archive(file: str, size: int, md5: str) -> tuple[Source, ...]:
    homes = ("https://www.cs.toronto.edu/~kriz", "https://cave.cs.toronto.edu/kriz")
    return (Source(file, tuple(f"{home}/{file}" for home in homes), size, md5),)


_FASHION_SIZES = {
    "train-images-idx3-ubyte": 26421880,
    "train-labels-idx1-ubyte": 29515,
    "t10k-images-idx3-ubyte": 4422102,
    "t10k-labels-idx1-ubyte": 5148,
}

SOURCES: Mapping[str, tuple[Source, ...]] = {
    "mnist": _idx(
        "mnist",
        # The original place comes second, because it seldom answers.
        ("https://ossci-datasets.s3.amazonaws.com/mnist", "http://yann.lecun.com/exdb/mnist"),
        {
            "train-images-idx3-ubyte": (9912422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            "train-labels-idx1-ubyte": (28881, "d53e105ee54ea40749a09fcbcd1e9432"),
            "t10k-images-idx3-ubyte": (1648877, "9fb629c4189551a2d022fa330f9573f3"),
            "t10k-labels-idx1-ubyte": (4542, "ec29112dd5afa0611ce80d1b7f02629c"),
        },
    ),
    "fashion-mnist": _idx(
        "fashion-mnist",
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
        ),
        {file: (size, PACKED["fashion-mnist", file]) for file, size in _FASHION_SIZES.items()},
    ),
    "cifar10": _archive("cifar-10-binary.tar.gz", 170052171, "c32a1d4ab5d03f1284b67883e8d87530"),
    "cifar100": _archive("cifar-100-binary.tar.gz", 168513733, "03b5dce01913d631647c71ecec9e9cb8"),
}
"""The files of each data set that can be fetched."""

OTHERS = {
    "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
    "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
}
"""MD5 of official files that are not fetched, but do as well."""

NOT_FETCHED = {
    "digits": "digits comes with scikit-learn: there is nothing to fetch.",
    "gaussian": "gaussian is drawn when it is used: there is nothing to fetch.",
    "imagefolder": "imagefolder cannot be fetched: put images of your own, or ImageNet's (from "
    "https://www.image-net.org, with an account), into train/CLASS and val/CLASS of the data folder's imagefolder.",
}
"""What to say of the others."""

NOT_VERIFIED = {
    "digits": "digits comes with scikit-learn: it has no file to verify",
    "gaussian": "gaussian is drawn when it is used: it has no file to verify",
    "imagefolder": "imagefolder is made of images of your own, for which no checksum is known",
}
"""What to say where there is no official file."""
