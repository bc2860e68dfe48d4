"""One pool of processes for all tests of this folder."""

from collections.abc import Iterator

import pytest
import torch

from tests.distributed.pool import Pool

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")


@pytest.fixture(scope="session")
def two() -> Iterator[Pool]:
    pool = Pool(2)
    yield pool
    pool.stop()


@pytest.fixture(scope="session")
def three() -> Iterator[Pool]:
    pool = Pool(3)
    yield pool
    pool.stop()


@pytest.fixture(scope="session")
def four() -> Iterator[Pool]:
    pool = Pool(4)
    yield pool
    pool.stop()
