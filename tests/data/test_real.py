"""The real MNIST and CIFAR-10, where a folder beside the repository has them."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trimtab.data import Batches, DataError, load, verify_files

UNPACK = Path(__file__).parents[3] / "shared" / "data" / "unpack.py"

pytestmark = pytest.mark.skipif(not UNPACK.is_file(), reason="no real data beside the repository")


def unpack(folder: Path, name: str) -> Path:
    subprocess.run([sys.executable, str(UNPACK), str(folder), name], check=True, capture_output=True)
    return folder


def test_mnist(tmp_path: Path) -> None:
    root = unpack(tmp_path, "mnist")
    data = load("mnist", root)
    assert (len(data.train), len(data.test), data.input_shape) == (60_000, 10_000, (1, 28, 28))
    # The numbers everybody normalizes MNIST by.
    assert data.mean == pytest.approx([0.1307], abs=5e-5)
    assert data.std == pytest.approx([0.3081], abs=5e-5)
    assert data.train.targets[:5].tolist() == [5, 0, 4, 1, 9]
    assert data.train.targets.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]

    assert [file.state for file in verify_files("mnist", root)] == ["official"] * 4
    images = root / "mnist" / "train-images-idx3-ubyte.gz"
    content = gzip.decompress(images.read_bytes())
    images.write_bytes(gzip.compress(content, 1))
    assert torch.equal(load("mnist", root).train.inputs, data.train.inputs)
    changed = bytearray(content)
    changed[1000] ^= 1
    images.write_bytes(gzip.compress(changed, 1))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is not the official .*6bbc9ace898e44ae"):
        load("mnist", root)
    images.write_bytes(gzip.compress(content, 1))
    with pytest.raises(DataError, match=r"is train-images-idx3-ubyte of mnist, not train-images-idx3-ubyte of fashion"):
        load("fashion-mnist", root / "mnist")


@pytest.mark.slow
def test_cifar10(tmp_path: Path) -> None:
    root = unpack(tmp_path, "cifar10")
    data = load("cifar10", root)
    assert (len(data.train), len(data.test), data.input_shape) == (50_000, 10_000, (3, 32, 32))
    assert data.mean == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)
    assert data.std == pytest.approx([0.2470, 0.2435, 0.2616], abs=5e-5)
    assert data.train.targets.bincount().tolist() == [5000] * 10
    assert data.test.targets[:5].tolist() == [3, 8, 8, 0, 6]
    generator = torch.Generator().manual_seed(0)
    inputs, _ = next(iter(Batches(data.train, 4096, dataset=data, generator=generator)))
    torch.testing.assert_close(inputs.mean((0, 2, 3)), torch.zeros(3), atol=0.05, rtol=0)
    torch.testing.assert_close(inputs.std((0, 2, 3)), torch.ones(3), atol=0.05, rtol=0)

    batch = root / "cifar-10-batches-bin" / "data_batch_4.bin"
    batch.write_bytes(batch.read_bytes()[: 3073 * 9999])
    with pytest.raises(DataError, match=r"data_batch_4\.bin is not the official data_batch_4\.bin of cifar10"):
        load("cifar10", root)
