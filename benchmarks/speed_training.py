"""How long `trimtab train` takes for a whole run, from two short ones: measured for benchmarks/speed.py."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

EPOCHS, STEPS_PER_EPOCH = 160, 390
SHORT, LONG = 2, 12
RESNET_RUN = ("--data", "cifar10", "--network", "resnet110", "--method", "bnp+gn", "--compile")


def wall_seconds(run: tuple[str, ...], steps: int, device: str, precision: str) -> float:
    """The seconds that pass for a run from beginning to end, with data, evaluations and checkpoints.

    Raises:
        RuntimeError: With the last line of what it said, if it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        settings = ("--steps", str(steps), "--device", device, "--precision", precision, "--quiet")
        command = [sys.executable, "-m", "trimtab", "train", *run, *settings, "--out", str(Path(folder) / "run")]
        begin = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True)
        seconds = time.perf_counter() - begin
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or done.stdout.strip() or "no words").splitlines()[-1])
    return seconds


def whole_run_minutes(run: tuple[str, ...], steps_per_epoch: int, device: str, precision: str) -> dict[str, float]:
    """Minutes of a run of so many epochs: a short run, and the further epochs as they are in a longer one.

    Raises:
        RuntimeError: If a run fails, or if the longer one takes no longer.
    """
    short, long = (wall_seconds(run, epochs * steps_per_epoch, device, precision) for epochs in (SHORT, LONG))
    epoch = (long - short) / (LONG - SHORT)
    if epoch <= 0:
        raise RuntimeError(f"{LONG} epochs took {long:.1f} s and {SHORT} took {short:.1f}: too little to tell")
    return {
        "minutes": (short + (EPOCHS - SHORT) * epoch) / 60,
        "seconds an epoch": epoch,
        "seconds to start": short - SHORT * epoch,
    }
