"""The page as a text."""

import re
import time
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.report.helpers import NASTY, TEN, Plan, settings, write_comparison, write_run
from trimtab.records import EVENTS
from trimtab.report import collect, write_page

EMPTY = {"meta", "link", "input", "br"}


class Reader(HTMLParser):
    """Reads a page and complains about what is not in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.references: set[str] = set()
        self.headings: list[int] = []
        self.links: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        if tag not in EMPTY:
            self.open.append(tag)
        if re.fullmatch(r"h\d", tag):
            self.headings.append(int(tag[1]))
        for name, value in attrs:
            assert re.fullmatch(r"[a-z0-9]+(-[a-z]+)*", name) and not name.startswith("on"), name
            self.references |= set(re.findall(r"url\(#([^)]*)\)", value or ""))
            if name == "id":
                self.ids[value or ""] += 1
            elif name in ("href", "src"):
                self.references.add((value or "")[1:]) if (value or "").startswith("#") else self.links.append(
                    value or ""
                )

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in EMPTY:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(folder: Path) -> tuple[Reader, str]:
    write_page(collect([folder]), folder / "page.html")
    page = (folder / "page.html").read_text()
    reader = Reader(page)
    assert max(reader.ids.values(), default=1) == 1
    assert reader.references <= reader.ids.keys()
    assert reader.links == ["data:,"]
    assert reader.headings[0] == 1 and reader.headings.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(reader.headings, reader.headings[1:], strict=False))
    assert not reader.tags["script"] and not reader.tags["metadata"]
    assert reader.tags["style"] == 1  # a style sheet in a figure would hold for the whole page
    return reader, " ".join(" ".join(reader.texts).split())


@pytest.mark.slow
def test_the_page_of_the_demo_is_small_and_quick(tmp_path: Path) -> None:
    plan = Plan(diverging=(("cnn5", 2, "bn"),), cannot=(("cnn5", 1, "bn"), ("mlp3x100", 1, "bn")))
    write_comparison(tmp_path, plan)
    started = time.process_time()
    reader, text = read(tmp_path)
    assert time.process_time() - started < 20  # it takes three
    first = (tmp_path / "page.html").read_bytes()
    assert len(first) < 3e6
    assert reader.tags["svg"] == 2 + 2 * 8 + 8
    assert reader.tags["details"] == 2 + 8 + 8 + 1
    names = ["Verdict", "Results", "Overview", "Curves", "How the learning rates were chosen", "Settings"]
    names += ["How to make it again", "Hardware and versions", "Notes"]
    places = [text.index(name) for name in names]
    assert places == sorted(places)
    for part in (
        "1 of 3 diverged",
        "BatchNorm: 1 of 3 diverged, at step 430.",
        "BatchNorm cannot train cnn5",
        plan.command,
    ):
        assert part in text
    # All colours are variables, so that both schemes suit.
    assert not re.search(r'style="[^"]*#[0-9a-f]{6}', first.decode())


def test_the_same_records_make_the_same_page(tmp_path: Path) -> None:
    write_comparison(tmp_path, Plan(sizes=(2,), seeds=2, diverging=(("cnn5", 2, "bn"),)))
    first, second = tmp_path / "first.html", tmp_path / "second.html"
    write_page(collect([tmp_path]), first)
    write_page(collect([tmp_path]), second)
    assert first.read_bytes() == second.read_bytes()


def test_the_verdict_names_the_winner_first_and_lists_reservations(tmp_path: Path) -> None:
    write_comparison(tmp_path, Plan(networks=("cnn5",), sizes=(4, 2), seeds=2, diverging=(("cnn5", 2, "bn"),)))
    _, text = read(tmp_path)
    page = (tmp_path / "page.html").read_text()
    assert '<p class="verdict">BNP has the highest mean test accuracy in both settings. At batch sizes' in page
    assert "<li>1 run of BatchNorm diverged.</li>" in page
    assert text.index("Verdict BNP has") < text.index("Reservations:") < text.index("1 run of BatchNorm diverged.")


def test_a_verdict_that_was_stored_is_shown(tmp_path: Path) -> None:
    told = write_comparison(tmp_path, Plan(networks=("cnn5",), sizes=(4,), seeds=1))
    replace(told, conclusion=f"All is {NASTY}.\n- But <b>not</b> here.").write(tmp_path)
    _, text = read(tmp_path)
    assert f"All is {NASTY}. Reservations: But <b>not</b> here." in text


def test_settings_left_at_their_defaults_are_folded(tmp_path: Path) -> None:
    write_run(tmp_path / "a", settings(rho=0.5), defaults=("lr", "augment", "milestones", "seed"))
    write_run(tmp_path / "b", settings(rho=0.5, seed=1), defaults=("lr", "augment", "seed"))
    _, text = read(tmp_path)
    shown, _, folded = text.partition("Settings Of all runs")[2].partition("1 setting left at the default")
    for part in ("lr 0.1", "seed 0 and 1", "rho 0.5", "milestones 3 4"):
        assert part in shown
    assert "augment" not in shown and "augment no" in folded


def test_records_that_do_not_tell_defaults_show_all_settings(tmp_path: Path) -> None:
    write_run(tmp_path / "a", settings())
    _, text = read(tmp_path)
    assert "augment no" in text and "at the default" not in text


def test_loose_runs_have_a_verdict(tmp_path: Path) -> None:
    write_run(tmp_path / "a", settings())
    _, text = read(tmp_path)
    assert re.search(r"Verdict BNP ends with a test accuracy of \d\d\.\d %, after 1000 steps\. Results", text)
    write_run(tmp_path / "b", settings(method="bn"), skill=0.5)
    _, text = read(tmp_path)
    assert re.search(
        r"BNP has the highest test accuracy at the end, \d\d\.\d %; BatchNorm \d\d\.\d %\. Reservations: There is one",
        text,
    )
    write_run(tmp_path / "c", settings(network="vgg"))
    _, text = read(tmp_path)
    assert "Verdict 3 runs: 3 finished. cnn5, batch size 2: BNP has the highest" in text
    assert "vgg, batch size 2: BNP ends with" in text


def test_no_number_is_written_in_two_notations(tmp_path: Path) -> None:
    plan = Plan(metric="loss", scale=1e-9, networks=("r",), sizes=(4, 2), seeds=2, lrs=(1e-6, 1e-5, 1e-4, 2e-3))
    write_comparison(tmp_path, plan)
    _, text = read(tmp_path)
    text = text.partition("Verdict")[2]  # behind the style sheet with its colours
    assert "10⁻⁵" in text and not re.search(r"\de[-+]?\d", text)


def test_whatever_names_say_is_text(tmp_path: Path) -> None:
    plan = Plan(
        networks=(NASTY,),
        sizes=(4, 2),
        methods=(NASTY, "bn"),
        data=NASTY,
        command=NASTY,
        machine=NASTY,
        seeds=1,
        extra={"optimizer": NASTY},
    )
    write_comparison(tmp_path, plan)
    reader, text = read(tmp_path)
    assert text.count(NASTY) > 20
    assert "b" in reader.tags and "h1" in reader.tags


def test_losses_and_open_cells(tmp_path: Path) -> None:
    plan = Plan(networks=("r",), sizes=(0, 4), metric="loss", seeds=2, open_cells=2, diverging=(("r", 4, "bn"),))
    write_comparison(tmp_path, plan)
    _, text = read(tmp_path)
    for part in ("Test loss: mean of 2 seeds [range]", "∞", "…", "The comparison is not finished", "test loss"):
        assert part in text


def test_a_comparison_that_has_just_begun(tmp_path: Path) -> None:
    write_comparison(tmp_path, Plan(networks=("cnn5",), sizes=(4, 2), open_cells=8))
    reader, text = read(tmp_path)
    assert not reader.tags["svg"]
    assert "There are no two methods to compare yet." in text
    assert "There are no curves yet" in text


def test_ten_methods(tmp_path: Path) -> None:
    write_comparison(tmp_path, Plan(networks=("cnn5",), sizes=(4,), methods=TEN, seeds=1))
    reader, _ = read(tmp_path)
    assert reader.tags["svg"] == 3


def test_loose_runs_say_how_they_ended(tmp_path: Path) -> None:
    write_run(tmp_path / "a", settings(seed=0))
    write_run(tmp_path / "b", settings(seed=1), until=400, verdict="diverged")
    write_run(tmp_path / "c", settings(method="bn"), until=600, verdict="interrupted")
    write_run(tmp_path / "d", settings(method="ln"), until=300, verdict=None)
    write_run(tmp_path / "e", settings(method="ln", seed=1))
    (tmp_path / "e" / EVENTS).write_text("x\nx\n")
    _, text = read(tmp_path)
    for part in (
        "4 runs: 1 finished, 1 diverged, 1 interrupted and 1 not finished.",
        "BNP: 1 of 2 diverged, at step 400.",
        "BatchNorm: 1 of 1 interrupted, at step 600.",
        "LayerNorm: 1 of 1 not finished, at step 300.",
        "line 1: this is no event of a run.",
        "trimtab train --out a trimtab train --out b",
    ):
        assert part in text


def test_several_subjects_on_one_page(tmp_path: Path) -> None:
    small = Plan(networks=("cnn5",), sizes=(4, 2), methods=("bn", "bnp"), seeds=1)
    write_comparison(tmp_path / "x" / "same", small)
    write_comparison(tmp_path / "y" / "same", small)
    write_run(tmp_path / "z", settings())
    reader, _ = read(tmp_path)
    assert reader.tags["fieldset"] == 3
    assert reader.headings.count(2) == 3


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    write_run(tmp_path / "a", settings())
    (tmp_path / "page.html").mkdir()
    with pytest.raises(OSError, match="not a plain file"):
        write_page(collect([tmp_path]), tmp_path / "page.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "page.html"]


def test_names_that_make_the_same_file_name(tmp_path: Path) -> None:
    write_comparison(tmp_path, Plan(networks=("a b", "a-b"), sizes=(4, 2), methods=("bn", "bnp"), seeds=1))
    reader, _ = read(tmp_path)
    assert reader.tags["svg"] == 2 + 8 + 4


def test_a_comparison_of_nothing(tmp_path: Path) -> None:
    write_comparison(tmp_path, Plan(networks=()))
    assert "No method could be trained." in read(tmp_path)[1]
