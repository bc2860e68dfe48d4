"""How long `trimtab train` takes for a whole run, from a short one: measured for benchmarks/speed.py."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EPOCHS, STEPS_PER_EPOCH = 160, 390
# An epoch's time is that between the ends of these two; the first one has all that is done once before it.
FIRST, LAST = 2, 12
RESNET_RUN = ("--data", "cifar10", "--network", "resnet110", "--method", "bnp+gn", "--compile")
LOOK = 0.01  # seconds between two looks at the records


def whole_run_minutes(run: tuple[str, ...], steps_per_epoch: int, device: str, precision: str) -> dict[str, float]:
    """Minutes of a run of 160 epochs: what one of 12 takes, and 148 times an epoch as it is there.

    By the clock on the wall, with starting, compiling, data, evaluations and checkpoints. What was compiled in earlier
    runs is not used.

    Raises:
        RuntimeError: With the last line of what it said, if the run fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        steps = ("--steps", str(LAST * steps_per_epoch), "--device", device, "--precision", precision, "--quiet")
        command = [sys.executable, "-m", "trimtab", "train", *run, *steps, "--out", str(out)]
        caches = {name: str(Path(folder) / name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
        begin = time.perf_counter()
        with (Path(folder) / "said").open("w+", encoding="utf-8") as said:
            process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=os.environ | caches)
            try:
                ends = _watched(process, out / "events.jsonl")
            except BaseException:
                process.kill()
                process.wait()
                raise
            seconds = time.perf_counter() - begin
            said.seek(0)
            words = said.read().strip() or "no words"
    if process.returncode < 0:
        raise RuntimeError(f"the run was ended by signal {-process.returncode}")
    if process.returncode:
        raise RuntimeError(words.splitlines()[-1])
    if len(ends) != LAST:
        raise RuntimeError(f"{len(ends)} evaluations were seen in {LAST} epochs")
    epoch = (ends[LAST - 1] - ends[FIRST - 1]) / (LAST - FIRST)
    return {
        "minutes": (seconds + (EPOCHS - LAST) * epoch) / 60,
        "seconds an epoch": epoch,
        "seconds to start": seconds - LAST * epoch,
    }


def _watched(process: subprocess.Popen[bytes], events: Path) -> list[float]:
    """When each evaluation was recorded, until the process ends."""
    ends: list[float] = []
    while True:
        over = process.poll() is not None
        if events.exists():
            recorded = events.read_text(encoding="utf-8").count('"kind": "evaluated"')
            ends += [time.perf_counter()] * (recorded - len(ends))
        if over:
            return ends
        time.sleep(LOOK)
