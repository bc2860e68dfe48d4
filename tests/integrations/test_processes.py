"""Frameworks that train in two processes: each is the plain loop with DistributedDataParallel, to the last bit."""

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = {"lightning": "lightning", "fabric": "lightning", "accelerate": "accelerate", "transformers": "transformers"}


@pytest.mark.slow
@pytest.mark.parametrize("framework", PACKAGES)
def test_the_same_as_the_plain_loop(framework: str, tmp_path: Path) -> None:
    pytest.importorskip(PACKAGES[framework], reason=f"{PACKAGES[framework]} is not installed; it is in the dev extra")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *launch, "-m", "tests.integrations.processes", framework, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2])
    assert done.stdout.count("equal to the last bit") == 2, done.stderr[-3000:]
