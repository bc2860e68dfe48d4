"""The examples with several processes, as their first lines say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [("ddp_bnp.py", "equal weights in all processes: True"), ("fsdp_bnp.py", "this process holds 25 of 50 rows")],
)
def test_an_example(name: str, said: str) -> None:
    script = EXAMPLES / name
    assert len(script.read_text(encoding="utf-8").splitlines()) < 60
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env={**os.environ})
    assert said in done.stdout
    accuracy = float(done.stdout.partition("accuracy: ")[2].partition(";")[0])
    assert accuracy > 0.8
