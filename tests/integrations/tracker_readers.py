"""What trackers have written, read by their own readers: the numbers of each step, and the names of the figures."""

import json
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest


@dataclass(frozen=True)
class Tracked:
    """A run of a tracker: its name, all values that were written of each number, and the figures."""

    run: str
    written: dict[tuple[int, str], list[float]]
    figures: list[str]

    @property
    def scalars(self) -> dict[int, dict[str, float]]:
        found: dict[int, dict[str, float]] = {}
        for (step, name), values in self.written.items():
            found.setdefault(step, {})[name] = values[-1]
        return found


def tracked(run: str, triples: Iterable[tuple[int, str, float]], figures: Iterable[str]) -> Tracked:
    written: dict[tuple[int, str], list[float]] = {}
    for step, name, value in triples:
        written.setdefault((step, name), []).append(value)
    return Tracked(run, written, sorted(figures))


def tensorboard(folder: Path) -> list[Tracked]:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed; it is in the dev extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = []
    for run in sorted(path for path in folder.iterdir() if path.is_dir()):
        reader = EventAccumulator(str(run)).Reload()
        tags = reader.Tags()
        triples = [(event.step, tag, event.value) for tag in tags["scalars"] for event in reader.Scalars(tag)]
        found.append(tracked(run.name, triples, tags["images"]))
    return found


def mlflow(folder: Path) -> list[Tracked]:
    package = pytest.importorskip("mlflow", reason="mlflow is not installed; it is in the dev extra")
    with patch.dict(os.environ, MLFLOW_ALLOW_FILE_STORE="true"):
        client = package.MlflowClient(tracking_uri=folder.absolute().as_uri())
        (experiment,) = [each for each in client.search_experiments() if each.name == "trimtab"]
        found = []
        for run in sorted(client.search_runs([experiment.experiment_id]), key=lambda run: run.info.run_name):
            assert run.info.status == "FINISHED"
            number = run.info.run_id
            history = [each for key in run.data.metrics for each in client.get_metric_history(number, key)]
            figures = [each.path.removesuffix(".png") for each in client.list_artifacts(number)]
            found.append(tracked(run.info.run_name, [(one.step, one.key, one.value) for one in history], figures))
    return found


def wandb(folder: Path) -> list[Tracked]:
    """Offline each part of a run that was resumed has a folder of its own, with the identity of the run in its name."""
    package = pytest.importorskip("wandb", reason="wandb is not installed; it is in the dev extra")
    package.teardown()  # its process writes on when a run has been finished
    from wandb.proto import wandb_internal_pb2

    parts: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        parts.setdefault(path.stem, []).append(path)
    found = []
    for paths in parts.values():
        triples, figures, names = [], set(), set()
        for path in paths:
            for data in _wandb_records(path):
                record = wandb_internal_pb2.Record()
                record.ParseFromString(data)
                if record.HasField("run"):
                    names.add(record.run.display_name)
                items = {tuple(one.nested_key): json.loads(one.value_json) for one in record.history.item}
                for (name, *part), value in items.items():
                    if part == ["path"]:
                        figures.add(name)
                        assert (path.parent / "files" / value).exists()
                    elif not part and not name.startswith("_"):
                        triples.append((items["_step",], name, value))
        (name,) = names
        found.append(tracked(name, triples, figures))
    return sorted(found, key=lambda run: run.run)


def _wandb_records(path: Path) -> Iterator[bytes]:
    """The records of a file of wandb, which is a log of LevelDB: blocks of 32 kB with whole records and parts of them.

    wandb itself reads it in Go only.
    """
    content = path.read_bytes()
    assert content[:4] == b":W&B"
    at, parts = 7, b""
    while at + 7 <= len(content):
        left = (1 << 15) - at % (1 << 15)
        if left < 7:  # too little for a header
            at += left
            continue
        length, kind = struct.unpack("<xxxxHB", content[at : at + 7])
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


READERS = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
