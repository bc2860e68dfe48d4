"""The folder of a sweep: what is damaged or another's, and noise that does not depend on what was trained before."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab.records import RESULTS, Sweep
from trimtab.training import checkpoint
from trimtab.training.sweep.axes import Axis
from trimtab.training.sweep.folder import STACKS
from trimtab.training.sweep.plan import PLAN, Grid
from trimtab.training.sweep.runner import SweepRunner

CPU = torch.device("cpu")
AXES = (Axis.parse("lr=0.01,0.1"), Axis.parse("batch_size=16,32"))
FIRST = f"{STACKS}/0000.json", f"{STACKS}/0000.pt"


def runner(out: Path, method: str = "ln", **options: Any) -> SweepRunner:
    given = {"data": "digits", "network": "small-mlp", "method": method, "steps": 3}
    return SweepRunner(Grid(given, AXES, 1), out, command="c", device=CPU, **{"threads": 1, **options})


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sweep") / "s"
    runner(out).run()
    return out


@pytest.fixture
def done(once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(once, tmp_path / "s"))


def damaged_outcomes(**changes: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = json.loads((folder / FIRST[0]).read_bytes())
        content["outcomes"][0].update(changes)
        (folder / FIRST[0]).write_text(json.dumps(content))

    return damage


def damaged_checkpoint(content: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / FIRST[0]).unlink()
        checkpoint.save(folder / FIRST[1], {"stack": content})

    return damage


MENDED: dict[str, Callable[[Path], object]] = {
    "results cut off": lambda folder: (folder / RESULTS).write_text('{"kind": '),
    "results gone": lambda folder: (folder / RESULTS).unlink(),
    "outcomes cut off": lambda folder: (folder / FIRST[0]).write_text('{"networks": '),
    "outcomes of other networks": lambda folder: (folder / FIRST[0]).write_text('{"networks": [7], "outcomes": []}'),
    "loss is a word": damaged_outcomes(loss="a"),
    "loss is not finite": damaged_outcomes(loss=float("nan")),
    "step is a list": damaged_outcomes(exploded_at=[]),
    "checkpoint of no stack": damaged_checkpoint("x"),
    "checkpoint without tensors": damaged_checkpoint({"numbers": "x"}),
    "checkpoint of more networks": damaged_checkpoint({"numbers": torch.tensor([99])}),
}


@pytest.mark.parametrize("damage", MENDED.values(), ids=list(MENDED))
def test_what_is_damaged_is_made_again(damage: Callable[[Path], object], done: Path) -> None:
    before = (done / RESULTS).read_bytes()
    damage(done)
    runner(done).run()
    assert (done / RESULTS).read_bytes() == before


def _changed_plan(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        plan = json.loads((folder / PLAN).read_bytes())
        (folder / PLAN).write_text(json.dumps({**plan, **changes}))

    return change


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "gone": (lambda folder: (folder / PLAN).unlink(), "missing or damaged"),
    "empty": (lambda folder: (folder / PLAN).write_text("{}"), "missing or damaged"),
    "no stacks": (_changed_plan(stacks=None), "missing or damaged"),
    "words in stacks": (_changed_plan(stacks=[["x"]]), "missing or damaged"),
    "an engine that is none": (_changed_plan(engine="x"), "missing or damaged"),
    "too few networks": (_changed_plan(stacks=[[0, 1]]), "holds another sweep"),
    "too many networks": (_changed_plan(stacks=[[0, 1, 2, 3, 4]]), "holds another sweep"),
}


@pytest.mark.parametrize(("damage", "sentence"), REFUSED.values(), ids=list(REFUSED))
def test_without_its_plan_a_sweep_is_not_gone_on_with(
    damage: Callable[[Path], object], sentence: str, done: Path
) -> None:
    before = (done / RESULTS).read_bytes()
    damage(done)
    with pytest.raises(ValueError, match=sentence):
        runner(done)
    assert (done / RESULTS).read_bytes() == before
    runner(done, force=True).run()
    assert (done / RESULTS).read_bytes() == before


def test_noise_and_predictions_do_not_depend_on_what_was_drawn_before(tmp_path: Path) -> None:
    first = runner(tmp_path / "a", "noisy-bn").run()
    torch.rand(7)
    assert runner(tmp_path / "b", "noisy-bn").run() == first
    assert first.predictions
    # Killed between two stacks: the second one is trained in another process.
    torch.rand(3)
    (tmp_path / "a" / STACKS / "0001.json").unlink()
    (tmp_path / "a" / RESULTS).unlink()
    assert runner(tmp_path / "a", "noisy-bn").run() == first
    assert Sweep.read(tmp_path / "a") == first


def test_too_many_threads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="threads is 100000"):
        runner(tmp_path / "s", threads=100_000)
