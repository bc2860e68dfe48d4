"""The page of a diagnosis: whole in itself, with a panel and a picture for each finding, whatever was measured."""

import re
import sys
from pathlib import Path

import pytest
from torch.optim import SGD

from tests.doctor.test_measurements import looked_at, small
from tests.doctor.trainings import cross_entropy
from trimtab import Doctor
from trimtab.doctor import NAMES, Cure, Diagnosis, Finding, Note, Record
from trimtab.doctor.page import page


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
