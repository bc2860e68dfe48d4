"""The examples for frameworks run, and do what they say."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("package", "name", "steps"), [("lightning", "lightning_bnp.py", 718), ("transformers", "trainer_bnp.py", 100)]
)
def test_example(
    package: str,
    name: str,
    steps: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed; it is in the dev extra")
    monkeypatch.chdir(tmp_path)
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) < 60
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(rf" {steps} +0 +[\d.]+  preconditioned", printed)  # not only the steps after the checkpoint
    assert float(re.findall(r"smoothness ([\d.]+)", printed)[0]) > 0
    kind, value = re.findall(r"^(accuracy|loss) ([\d.]+)$", printed, re.MULTILINE)[-1]
    assert float(value) > 0.85 if kind == "accuracy" else float(value) < 2.3
