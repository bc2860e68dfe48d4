"""Settings for all tests."""

import gc
import os
from collections.abc import Iterator
from typing import Any

# Two test processes share two cores: threads that wait for a busy one take many times as long. Set before NumPy is
# imported, which asks once; processes that are started from here inherit it.
# Where a test asks for two threads, one that waits leaves its core to the other process.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
# No deadlines: how long an example takes depends on what else the machine does.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


# Files whose tests share what takes seconds to make: a browser with its pages, a server that workers are forked from,
# processes that train together, the first compilation.
SHARING = {
    "tests/bnp/test_compiled.py": "compiled",
    "tests/bnp/test_moments.py": "compiled",
    "tests/bnp/test_own_forward.py": "compiled",
    "tests/claims/test_core_running.py": "workers",
    "tests/claims/test_killed.py": "workers",
    "tests/distributed/test_ddp.py": "group",
    "tests/distributed/test_exchange.py": "group",
    "tests/distributed/test_sharded.py": "group",
    "tests/distributed/test_train.py": "group",
    "tests/distributed/test_torchrun.py": "torchrun",
    "tests/report/test_browser.py": "browser",
    "tests/test_cli.py": "workers",
    "tests/training/sweep/test_sweep.py": "workers",
    "tests/training/test_compare.py": "workers",
}


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist there is no such hook
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n 2`: the tests of files that share something go to one process, each other one to any that is free."""
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return SHARING.get(nodeid.partition("::")[0], nodeid)

    return Scheduling(config, log)


def pytest_collection_finish() -> None:
    """Leave what was imported for all tests out of garbage collections: those that tests ask for take a fifth then."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def forked_workers() -> Iterator[None]:
    """Comparisons whose processes start at once: they are real ones, forked from a server that has imported torch."""
    from tests.processes import SERVER

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("trimtab.training.workers.local_pool.PROCESSES", SERVER)
        yield


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions from three drawn networks, for tests of everything but their precision."""
    for name in ("MIN_DRAWS", "MAX_DRAWS"):
        monkeypatch.setattr(f"trimtab.prediction.drawing.{name}", 3)
