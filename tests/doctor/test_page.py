"""The page of a diagnosis: whole in itself, with a panel and a picture for each finding, whatever was measured."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from torch.optim import SGD

from tests.doctor.test_measurements import looked_at, small
from tests.doctor.trainings import cross_entropy
from tests.report.browser import PROGRAM, Browser
from tests.report.test_browser import COLORS, LETTERS, hexadecimal
from tests.report.test_figures import contrast
from trimtab import Doctor
from trimtab.doctor import NAMES, Cure, Diagnosis, Finding, Note, Record
from trimtab.doctor.figures import loss_figure, picture
from trimtab.doctor.page import page
from trimtab.doctor.record import LayerLook, Look, Trial
from trimtab.doctor.trying import MULTIPLES

BESIDE = """
[...document.querySelectorAll('.panel:has(p)')].every(panel => {
  const [words, card] = [...panel.children].map(one => one.getBoundingClientRect());
  return card.left >= words.right && card.top <= words.top + 1;
})
"""
INSIDE = """
[...document.querySelectorAll('.stack td')].every(cell => {
  const words = document.createRange();
  words.selectNodeContents(cell);
  return words.getBoundingClientRect().left >= cell.getBoundingClientRect().left - 1;
})
"""


def finding(name: str, layer: str | None = "0") -> Finding:
    cure = Cure(setting="lr", factor=0.1, sentence="divide the <rate> by 10")
    evidence = {"peak": 3.5, "lost": float("nan")}
    return Finding(
        name=name, layer=layer, sentence="It is <ill>.", advice="Mend it.", cure=cure, certainty=0.9, evidence=evidence
    )


@pytest.mark.parametrize("measured", [True, False])
def test_a_panel_and_a_picture_for_each_finding(measured: bool) -> None:
    record = looked_at()[0].record if measured else Record()
    several = tuple(finding(name, None if number % 2 else "0") for number, name in enumerate(NAMES))
    notes = (Note(name="few-steps", sentence="Few & short."),)
    text = page(Diagnosis(findings=several, notes=notes, steps=6, level="standard"), record)
    assert text.count("<svg") == len(NAMES) + 1
    assert [text.count(f'id="finding-{number}"') for number in range(1, len(NAMES) + 1)] == [1] * len(NAMES)
    assert "It is &lt;ill&gt;." in text and "<ill>" not in text and "Few &amp; short." in text
    assert "not measured" in text
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert "<script" not in text and not re.search(r'(src|href)="(?!#|data:)', text)


def test_an_empty_picture_says_why() -> None:
    record = looked_at(steps=3)[0].record
    assert [trial.step for trial in record.trials] == [0]
    for trials, words in ((record.trials, "None of the steps tried counts"), ([], "No step was tried")):
        figure = picture(finding("learning-rate-too-high"), replace(record, trials=trials))[0]()
        assert any(words in text.get_text().replace("\n", " ") for text in figure.axes[0].texts)


def test_the_bill_of_one_finding_names_no_order() -> None:
    one = finding("learning-rate-too-high", None)
    assert str(Diagnosis(findings=(one,), steps=6)).startswith("1 finding (6 steps, level light):\n1. learning-rate")
    several = Diagnosis(findings=(one, one), steps=6)
    assert str(several).startswith("2 findings (6 steps, level light), the worst first:")


@pytest.mark.parametrize("name", [None, *NAMES])
def test_legends_are_above_the_axes(name: str | None) -> None:
    record = looked_at()[0].record
    figure = loss_figure(record) if name is None else picture(finding(name), record)[0]()
    figure.draw_without_rendering()
    (axes,) = figure.axes
    for legend in figure.legends:
        assert legend.get_window_extent().y0 >= axes.get_window_extent().y1 - 1
    assert axes.get_legend() is None and (name is not None or figure.legends)


@pytest.mark.skipif(PROGRAM is None, reason="there is no chromium here")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(scheme: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    several = tuple(finding(name, 20 * "long_name." if number % 2 else "0") for number, name in enumerate(NAMES))
    path.write_text(page(Diagnosis(findings=several, steps=6), looked_at()[0].record), encoding="utf-8")
    browser = Browser(tmp_path / "profile")
    try:
        for width in (400, 1400):
            browser.open(path, width, scheme)
            browser.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            assert browser.complaints == []
            assert [url for url in browser.requests if not url.startswith("data:")] == [path.resolve().as_uri()]
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
            assert browser.evaluate(INSIDE)
            assert browser.evaluate(BESIDE) == (width == 1400)
            colors = browser.evaluate(COLORS)
            back = hexadecimal(colors[0][1])
            for front in [front for front, _ in colors] + browser.evaluate(LETTERS):
                assert contrast(hexadecimal(front), back) >= 4.5
    finally:
        browser.close()


def test_a_healthy_training_has_a_page_too(tmp_path: Path) -> None:
    doctor, _, _ = looked_at("light")
    doctor.report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Nothing was found that holds this training back (6 steps, level light)." in text
    assert text.count("<svg") == 1


def test_without_matplotlib_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    doctor = Doctor(model, SGD(model.parameters(), lr=0.1), cross_entropy)
    for name in list(sys.modules):
        if name.split(".")[0] == "matplotlib" or name.startswith(("trimtab.doctor.page", "trimtab.doctor.figures")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    with pytest.raises(ModuleNotFoundError, match=r"the page needs matplotlib.*; pip install '\.\[lab\]'"):
        doctor.report(tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_training_that_broke_at_once_has_a_point_at_step_0() -> None:
    """As one whose second loss is no number: one point makes no line, and there is no step 0.02."""
    axes = loss_figure(Record(losses=[2.0, float("nan")])).axes[0]
    assert [line.get_marker() for line in axes.get_lines()] == ["o", "o"]
    left, right = axes.get_xlim()
    shown = [tick for tick in axes.get_xticks() if left <= tick <= right]
    assert 0 in shown and len(shown) > 1
    assert all(float(tick).is_integer() for tick in shown)


@pytest.mark.parametrize(
    "beyond", [float("inf"), *[pytest.param(x, marks=pytest.mark.slow) for x in (float("nan"), 3e38)]]
)
def test_pictures_of_what_is_no_number(beyond: float) -> None:
    """As of a training whose steps lead to where the loss is infinite."""
    trials = [
        Trial(step=s, lr=1.0, loss=2.0, after=beyond, promised=1.0, multiples=MULTIPLES, others=others, other=2.0)
        for s, others in ((32, (1.5, beyond, beyond, beyond, beyond)), (64, (1.7, beyond, beyond, beyond, beyond)))
    ]
    layers = (LayerLook(layer="0", input_rms=beyond, output_rms=1.0), LayerLook(layer="1", output_rms=beyond))
    record = Record(losses=[2.0] * 65, trials=trials, looks=[Look(step=0, lr=1.0, gradient=beyond, layers=layers)])
    several = tuple(finding(name, "0") for name in NAMES)
    assert page(Diagnosis(findings=several, steps=65), record).count("<svg") == len(NAMES) + 1
