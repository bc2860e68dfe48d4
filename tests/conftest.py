"""Settings for all tests."""

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # two test processes share two cores
# No deadlines: how long an example takes depends on what else the machine does.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


@pytest.fixture(scope="module")
def forked_workers() -> Iterator[None]:
    """Comparisons whose processes start at once: they are real ones, forked from a server that has imported torch."""
    from tests.processes import SERVER

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("trimtab.training.workers.pool.PROCESSES", SERVER)
        yield
