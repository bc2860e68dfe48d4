"""A small ledger with every kind of claim, and its records: for tests of what is written of it."""

from collections.abc import Mapping
from typing import Any

from trimtab.claims.claim import Block, Claim, Superseded, digest_of
from trimtab.claims.functions import FUNCTIONS
from trimtab.claims.pages import JudgedBlock, judged
from trimtab.claims.part import parse_parts
from trimtab.claims.record import SIZES, Check, Record
from trimtab.claims.verdict import judge

NASTY = '<script>alert("&")</script> | ``*x*`'


def claim(name: str, parts: list[str], corrected: list[str] | None = None, **fields: Any) -> Claim:
    defaults: dict[str, Any] = {
        "paper": "bnp",
        "block": "1.2",
        "place": "Fig. 3",
        "kind": "C",
        "statement": f"What {name} says.",
        "criterion": "`acc`: bn better than ln",
        "experiment": "runs",
        "other_inputs": None,
        "needs": "" if parts else "CIFAR-100 is not at hand",
        "why": "",
        "seen": False,
        "disagrees": "",
        "supersedes": (),
    }
    known = {**defaults, **fields}
    corrected = corrected or []
    digest = digest_of(known["criterion"], parts, corrected)
    return Claim(id=name, digest=digest, parts=parse_parts(parts), corrected=parse_parts(corrected), **known)


def record(experiment: str, size: str, **fields: Any) -> Record:
    return Record(
        experiment=experiment,
        size=size,
        date="2026-11-18",
        command=f"trimtab claims run --experiment {experiment} --size {size}",
        commit="0123456789",
        machine="a machine",
        versions={},
        seconds=12.0,
        **fields,
    )


def numbers(**cases: list[float]) -> dict[str, dict[str, float]]:
    return {case: {str(101 + i): value for i, value in enumerate(values)} for case, values in cases.items()}


OLD = Superseded("what was asked before", ("acc: bn > ln",), "0" * 12, "does not hold", "2026-11-01", NASTY)
TRAINING = (
    claim("better", ["acc: bn > ln", "acc: bn ≳ ln"], seen=True),
    claim("worse", ["acc: ln > bn"], why="since ln is `worse`"),
    claim("partly", ["acc: bn > ln", "acc: ln > bn"], disagrees="the words are vague"),
    claim("nasty", ["acc: bn > ln"], statement=NASTY, criterion=NASTY, place=NASTY, supersedes=(OLD,)),
    claim("nowhere", []),
    claim("later", ["acc: bn > ln"], experiment="never-run"),
    claim("lacking", ["speed: bn > ln"]),
    claim("derived", ["claim later"], paper="trimtab"),
)
THEOREMS = (
    claim(
        "false", ["check printed"], ["check corrected"], block="2.1", paper="landscape", kind="T", experiment="draws"
    ),
    claim("true", ["check corrected"], block="2.1", paper="landscape", kind="T", experiment="draws"),
)
BLOCKS = (
    Block("1.2", "bnp", f"Training {NASTY}", "with `--rates 3`", TRAINING),
    Block("2.1", "landscape", "Theorems", "seconds", THEOREMS),
)
LINES = {
    "bn": [[1.0, 50.0, 45.0, 55.0], [2.0, 90.0, 85.0, 91.0], [3.0, 98.0, 97.0, 99.0]],
    NASTY: [[1.0, 40.0, 35.0, 45.0], [2.0, float("nan"), float("nan"), float("inf")], [3.0, 97.0, 96.0, 98.0]],
}
RECORDS = (
    record(
        "runs",
        "small",
        units={"acc": "points"},
        numbers={"acc": numbers(bn=[98.0, 98.1, 98.2], ln=[97.0, 97.2, 97.1])},
        curves={"accuracy": LINES, "loss over steps": {"bn": [[10.0**i, 2.0 ** (-3 * i)] for i in range(5)]}},
        neighbour="digits instead of <CIFAR-10>",
        notes=["a note & more"],
        refused={"bn M=1": "one row"},
    ),
    record(
        "draws",
        "small",
        checks={
            "printed": Check("<=", 200, 198, 1.25, 1.0, {"seed": 101}, {"draw": 7, "left": 1.25, "right": 1.0}),
            "corrected": Check("<=", 200, 200, 0.5, 1.0),
        },
    ),
)


class Store:
    """Records in memory."""

    def __init__(self, *records: Record) -> None:
        self._known = {(one.experiment, one.size): one for one in records}

    def find(self, experiment: str, size: str) -> Record | None:
        return self._known.get((experiment, size))


def ledger(*records: Record) -> list[JudgedBlock]:
    """The blocks with verdicts by these records; by none everything is not run."""
    store = Store(*records)
    claims: Mapping[str, Claim] = {one.id: one for block in BLOCKS for one in block.claims}
    found = {}
    for one in claims.values():
        by_size = [judge(one, size, store, claims, FUNCTIONS) for size in reversed(SIZES)]
        found[one.id] = [verdict for verdict in by_size if verdict.records or verdict.state != "not run"] or by_size[
            -1:
        ]
    return [judged(block, found) for block in BLOCKS]
