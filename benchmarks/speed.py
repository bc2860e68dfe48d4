"""What BNP costs beside BN and beside nothing, as ratios: python benchmarks/speed.py [--device cuda] (minutes).

Contenders take turns in one process. Printed are medians of the ratios of rounds, their quartiles, and the goals. They
are kept in benchmarks/results/, one JSON file per machine, of which benchmarks/RESULTS.md is made; with --out they go
to that file only. With --only the other cases of a file stay as they are, if it is of the same machine.
"""

import argparse
import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import speed_scaling
import speed_table
import speed_training
import torch
from speed_cases import (
    Contender,
    Training,
    alternate,
    keep_freed_memory,
    peak_memory,
    ratios,
    rounded,
    set_precision,
    spread,
)
from speed_table import CNN, DEPTH_COST, FC, GOALS, HERE, MEMORY, RESNET, TRAINING, WIDTH_COST

from trimtab.bnp import backends
from trimtab.records import machine

NAMES = {
    "vanilla": "vanilla",
    "bn": "BN",
    "bnp": "BNP",
    "plain": "plain BNP",
    "site": "BNP by site",
    "wn": "WN",
    "gn": "GN",
    "bnp+gn": "BNP+GN",
}
SECONDS = {"cpu": 12.0, "cuda": 4.0}
BUILDS = 6  # of networks with short steps


class Group:
    """Measures cases and gathers what they gave.

    Attributes:
        device: cpu or cuda.
        found: As it will stand in the file.
    """

    def __init__(self, told: argparse.Namespace, device: str) -> None:
        """With nothing measured yet."""
        self.device = device
        self.seconds = SECONDS[device] if told.seconds is None else told.seconds
        self.precision = told.precision
        short = "" if told.seconds is None else f" --seconds {told.seconds:g}"
        precise = "" if told.precision == "fp32" else f" --precision {told.precision}"
        self.found: dict[str, Any] = {
            "run": {
                "options": short + precise,
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
                "precision": told.precision,
                "kernels": backends.describe(device),
            },
            "ratios": [],
            "steps": [],
            "failed": {},
        }

    def contenders(self, network: str, size: int, methods: Iterable[str], **told: Any) -> dict[str, Contender]:
        """By the names that they have in tables."""
        common = {"network": network, "size": size, "device": self.device, "precision": self.precision, **told}
        kinds: dict[str, dict[str, Any]] = {
            "plain": {"method": "bnp", "plain": True},
            "site": {"method": "bnp", "spatial": "site"},
        }
        return {NAMES[method]: Contender(**kinds.get(method, {"method": method}), **common) for method in methods}

    def case(
        self, name: str, contenders: dict[str, Contender], pairs: Iterable[tuple[str, str]], builds: int = 1
    ) -> None:
        """Time contenders and tell the ratios of pairs; what fails is told, and the others go on.

        Contenders are built several times, in another order each time: where in memory their weights lie can change a
        short step by a tenth.
        """
        why = dict.fromkeys(contenders, "")
        times: dict[str, list[float]] = {contender: [] for contender in contenders}
        for number in range(builds):
            built: dict[str, Training] = {}
            for contender, told in [*contenders.items()][:: 1 if number % 2 else -1]:
                try:
                    built[contender] = told.start()
                except Exception as error:  # whatever it is, it belongs into the table
                    why[contender] = _one_line(error)
            try:
                found = alternate(built, self.seconds / builds, self.device) if built else {}
            except Exception as error:
                found, why = {}, dict.fromkeys(contenders, _one_line(error))
            for contender, seconds in found.items():
                times[contender] += seconds
                if not built[contender].finite():
                    why[contender] = "weights that are not finite"
        for contender, seconds in times.items():
            if seconds:
                self.figure(name, contender, spread([1000 * second for second in seconds]), "ms a step")
        for over, under in pairs:
            problem = why[over] or why[under]
            if problem:
                self.fail(f"{name}: {over} ÷ {under}", problem)
            else:
                self.ratio(f"{name}: {over} ÷ {under}", ratios(times, over, under), rounds=len(times[over]))

    def memory(self, name: str, contenders: dict[str, Contender]) -> None:
        """Peak memory of the second contender over that of the first."""
        (under, first), (over, second) = contenders.items()
        try:
            bytes_ = [peak_memory(contender.build, self.device) for contender in (first, second)]
        except Exception as error:
            self.fail(f"{name}: {over} ÷ {under}", _one_line(error))
            return
        for contender, number in zip(contenders, bytes_, strict=True):
            self.figure(name, contender, {"value": rounded(number / 2**20)}, "MiB")
        self.ratio(f"{name}: {over} ÷ {under}", {"value": rounded(bytes_[1] / bytes_[0])})

    def ratio(self, name: str, found: dict[str, float], **more: Any) -> None:
        """Keep a ratio and print it with its goal."""
        self.found["ratios"].append({"name": name, **found, **more})
        goal = GOALS[self.device].get(name)
        spread_ = f" ({found['low']:.3f}–{found['high']:.3f})" if "low" in found else ""
        met = "" if goal is None else f"   goal ≤ {goal:.2f}: {'met' if found['value'] <= goal else 'not met'}"
        print(f"  {name:<58}{found['value']:>7.3f}{spread_}{met}", flush=True)

    def fail(self, name: str, why: str) -> None:
        """Keep what went wrong and print it."""
        self.found["failed"][name] = f"failed: {why}"
        print(f"  {name:<58} failed: {why}", flush=True)

    def figure(self, case: str, contender: str, found: dict[str, float], unit: str) -> None:
        """Keep what one contender took."""
        self.found["steps"].append({"case": case, "contender": contender, **found, "unit": unit})


def fc(group: Group) -> None:
    """The network of the paper's Table 1."""
    pairs = [("BNP", "BN"), ("plain BNP", "BN"), ("BNP", "vanilla"), ("BN", "vanilla")]
    for size in (16, 256, 512):
        contenders = group.contenders("mlp2x100", size, ("vanilla", "bn", "bnp", "plain"))
        group.case(f"{FC}, batch {size}", contenders, pairs, BUILDS)


def cnn(group: Group) -> None:
    """The 5-layer CNN."""
    pairs = [("BNP", "BN"), ("plain BNP", "BN"), ("BNP", "vanilla"), ("BN", "vanilla")]
    group.case(f"{CNN}, batch 128", group.contenders("cnn5", 128, ("vanilla", "bn", "bnp", "plain")), pairs)


def site(group: Group) -> None:
    """The 5-layer CNN with statistics of each site of the kernels, which those of channels stand for (bnp, Sec. 4)."""
    group.case(f"{CNN}, batch 128, sites", group.contenders("cnn5", 128, ("bnp", "site")), [("BNP by site", "BNP")])


def wn(group: Group) -> None:
    """The CNN of the regularization paper with WN and with BN (its Sec. 5.1)."""
    for size in (64, 256):
        group.case(f"regcnn, batch {size}", group.contenders("regcnn", size, ("bn", "wn")), [("WN", "BN")])


def small(group: Group) -> None:
    """Batches of one and two rows."""
    pairs = [("BNP", "vanilla"), ("plain BNP", "vanilla")]
    for size in (1, 2):
        contenders = group.contenders("mlp2x100", size, ("vanilla", "bnp", "plain"))
        group.case(f"{FC}, batch {size}", contenders, pairs, BUILDS)


def resnet(group: Group) -> None:
    """ResNet-110; on a GPU captured too."""
    methods = ("gn", "bnp+gn", "bn") if group.device == "cuda" else ("gn", "bnp+gn")
    pairs = [("BNP+GN", "GN"), ("BNP+GN", "BN")][: len(methods) - 1]
    group.case(f"{RESNET}, batch 128, eager", group.contenders("resnet110", 128, methods), pairs)
    if group.device == "cuda":
        captured = group.contenders("resnet110", 128, methods, captured=True)
        group.case(f"{RESNET}, batch 128, captured", captured, pairs)


def memory(group: Group) -> None:
    """Peak memory beside the same network without BNP."""
    for name, network, size, methods in zip(
        MEMORY,
        ("mlp2x100", "cnn5", "resnet110"),
        (512, 128, 128),
        (("vanilla", "bnp"), ("vanilla", "bnp"), ("gn", "bnp+gn")),
        strict=True,
    ):
        group.memory(name, group.contenders(network, size, methods, batches=1))


def scaling(group: Group) -> None:
    """Against depth and width."""
    s = speed_scaling
    networks = {
        "depth": [(depth, s.DEPTH_WIDTH) for depth in s.DEPTHS],
        "width": [(s.WIDTH_DEPTH, width) for width in s.WIDTHS],
    }
    for kind, sizes in networks.items():
        points = group.found.setdefault(kind, [])
        for depth, width in sizes:
            try:
                found = s.point(depth, width, group.seconds / 4, group.device, group.precision)
            except Exception as error:
                group.fail(f"{depth} layers of {width} units", _one_line(error))
                continue
            points.append(found)
            added = found["added_ms"]
            print(
                f"  {f'{depth} layers of {width} units':<28}vanilla {found['vanilla_ms']:>9.4g} ms, added by BNP "
                f"{added['value']:>9.4g} ({added['low']:.4g}–{added['high']:.4g})",
                flush=True,
            )
    group.found["batch"] = s.BATCH
    slopes = group.found["exponents"] = s.exponents(group.found["depth"], group.found["width"])
    group.found["ranges"] = {
        "depth": f"over layers, from {s.DEPTH_FROM} on",
        "weights": f"over weights, from {s.WIDTH_FROM} units on",
    }
    for name, slope in ((DEPTH_COST, slopes["added"]["depth"]), (WIDTH_COST, slopes["added"]["weights"])):
        if slope is None:
            group.fail(name, "too few points with an added time")
        else:
            group.ratio(name, {"value": slope})


def training(group: Group) -> None:
    """ResNet-110 with BNP+GN by `trimtab train`, 160 epochs extrapolated from 12."""
    t = speed_training
    try:
        found = t.whole_run_minutes(t.RESNET_RUN, t.STEPS_PER_EPOCH, group.device, group.precision)
    except Exception as error:
        group.fail(TRAINING, _one_line(error))
        return
    for unit in ("seconds an epoch", "seconds to start"):
        group.figure("ResNet-110 by trimtab train", "BNP+GN", {"value": rounded(found[unit])}, unit)
    group.ratio(TRAINING, {"value": rounded(found["minutes"])})


# ResNet after the others: a capture that fails may leave the device in a bad state. Training only if asked for: it
# needs CIFAR-10 and takes a minute or two on a fast GPU, hours on a CPU.
GROUPS: dict[str, Callable[[Group], None]] = {
    "fc": fc,
    "cnn": cnn,
    "site": site,
    "wn": wn,
    "small": small,
    "memory": memory,
    "scaling": scaling,
    "resnet": resnet,
    "training": training,
}
USUAL = [name for name in GROUPS if name != "training"]


def measure(told: argparse.Namespace, device: str) -> None:
    """All chosen groups on one device; the file is written after each."""
    gpu = torch.cuda.get_device_name() if device == "cuda" else ""
    where = f"{gpu} ({machine()})" if gpu else machine()
    name = gpu.lower().removeprefix("nvidia ").replace(" ", "-") or "cpu"
    path: Path = told.out or HERE / "results" / f"{name}{'' if told.precision == 'fp32' else '-' + told.precision}.json"
    results: dict[str, Any] = {"device": device, "machine": where, "groups": {}}
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        results = before if (before["device"], before["machine"]) == (device, where) else results
    print(f"{where}, torch {torch.__version__}, {torch.get_num_threads()} threads, {told.precision}")
    print(f"kernels: {backends.describe(device)}", flush=True)
    for group_name in told.only:
        print(f"\n{group_name}: {GROUPS[group_name].__doc__}")
        group = Group(told, device)
        GROUPS[group_name](group)
        results["groups"][group_name] = group.found
        results["groups"] = {key: results["groups"][key] for key in GROUPS if key in results["groups"]}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\nKept in {path}.")


def main() -> None:
    """Measure on what is there, or on what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="where; otherwise on the CPU, then on a GPU if any")
    parser.add_argument(
        "--only",
        type=partial(str.split, sep=","),
        default=USUAL,
        help=f"of {', '.join(GROUPS)}; otherwise all but training",
    )
    parser.add_argument("--seconds", type=float, help="for each case; 12 on a CPU and 4 on a GPU")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    parser.add_argument("--out", type=Path, help="JSON file; otherwise in benchmarks/results, and RESULTS.md is made")
    told = parser.parse_args()
    unknown = set(told.only) - set(GROUPS)
    if unknown:
        parser.error(f"--only takes {', '.join(GROUPS)}, not {', '.join(sorted(unknown))}")
    if told.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here")
    set_precision(told.precision)
    keep_freed_memory()
    available = ["cpu", "cuda"] if torch.cuda.is_available() and told.out is None else ["cpu"]
    for device in [told.device] if told.device else available:
        measure(told, device)
    if told.out is None:
        speed_table.write()


def _one_line(error: Exception) -> str:
    """An error in a table's cell."""
    words = " ".join(f"{type(error).__name__}: {error}".split()).replace("|", "/")
    return words if len(words) <= 160 else words[:159] + "…"


if __name__ == "__main__":
    main()
