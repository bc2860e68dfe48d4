"""How long the first pass of the claims takes, run in pieces: python benchmarks/first_pass.py --records FOLDER.

The pass is `trimtab claims run --all --anew --pass first`; with --budget MINUTES it runs a piece, which leaves a record
of each experiment in runs/claims/results. This adds the times of a folder's records to the file, and the verdicts that
they give by themselves, with two seeds, beside those that come with trimtab. Printed are the sums, what is still to be
run, and where verdicts differ.
"""

import argparse
from collections import Counter
from pathlib import Path

from json_lines import append_line, read_lines

from trimtab.claims import RecordStore, claims, verdict_on
from trimtab.claims.plans import plan_first

FILE = Path(__file__).parent / "results" / "first_pass.jsonl"
SIZE = "small"


def add(folder: Path, file: Path) -> None:
    """Add what the records of a folder have that is not in the file yet."""
    store, shipped = RecordStore(folder, shipped=False), RecordStore()
    rows = read_lines(file)
    known = {row.get("experiment") for row in rows} | {row.get("claim") for row in rows}
    for planned in plan_first(claims().values(), SIZE, RecordStore(shipped=False)).now:
        name = planned.experiment.name
        if name not in known and (record := store.find(name, SIZE)) is not None:
            row = {"experiment": name, "estimate": 60 * planned.minutes, "seconds": record.seconds}
            row |= {"core_seconds": record.core_seconds, "date": record.date, "commit": record.commit}
            append_line(file, {**row, "machine": record.machine})
    for claim in claims().values():
        mine = verdict_on(claim, SIZE, store)
        whole = claim.deciding and all(store.find(name, SIZE) is not None for name in claim.deciding)
        if whole and claim.id not in known:
            theirs = verdict_on(claim, SIZE, shipped)
            append_line(file, {"claim": claim.id, "verdict": mine.state, "shipped": theirs.state})


def told(file: Path) -> list[str]:
    """Lines: the sums, what is left, and verdicts that differ."""
    rows = read_lines(file)
    done = {row["experiment"]: row for row in rows if "experiment" in row}
    left = [
        planned
        for planned in plan_first(claims().values(), SIZE, RecordStore(shipped=False)).now
        if planned.experiment.name not in done
    ]
    hours = {what: sum(row[what] for row in done.values()) / 3600 for what in ("estimate", "seconds", "core_seconds")}
    lines = [
        f"{len(done)} of {len(done) + len(left)} experiments: {hours['seconds']:.2f} h by the clock, half of their "
        f"core-seconds {hours['core_seconds'] / 2:.2f} h, estimated {hours['estimate']:.2f} h. "
        f"{', '.join(sorted({row['machine'] for row in done.values()}))}"
    ]
    if left:
        names = " ".join(f"--experiment {planned.experiment.name}" for planned in left)
        minutes = sum(planned.minutes for planned in left)
        lines.append(f"Left, about {minutes / 60:.2f} h: trimtab claims run {names} --anew --pass first")
    judged = [row for row in rows if "claim" in row]
    pairs = Counter((row["shipped"], row["verdict"]) for row in judged)
    same = sum(number for (shipped, verdict), number in pairs.items() if shipped == verdict)
    lines.append(
        f"{len(judged)} claims have a verdict by these records, {same} of them the one that comes with trimtab."
    )
    for (shipped, verdict), number in sorted(pairs.items()):
        if shipped != verdict:
            names = ", ".join(row["claim"] for row in judged if (row["shipped"], row["verdict"]) == (shipped, verdict))
            lines.append(f"  {number} × {verdict!r} and not {shipped!r}: {names}")
    return lines


def main() -> None:
    """Add, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, help="a folder of records that are to be added")
    parser.add_argument("--file", type=Path, default=FILE, help="default: %(default)s")
    options = parser.parse_args()
    if options.records is not None:
        add(options.records, options.file)
    print(*told(options.file), sep="\n")


if __name__ == "__main__":
    main()
