"""The package as a whole: what importing costs, what the documents say."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import trimtab

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    # What has to be run as a file starts processes.
    pytest.param(
        textwrap.dedent(code), id=f"{path.name}-{number}", marks=[pytest.mark.slow] if "__main__" in code else []
    )
    for path in DOCUMENTS
    for number, code in enumerate(re.findall(r"```python\n(.*?)\n *```", path.read_text(encoding="utf-8"), re.DOTALL))
]

# What a reader of the documents has at hand: a model, data, a loop.
PREAMBLE = """
import torch
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
                      nn.Linear(8 * 16, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loss_fn = nn.CrossEntropyLoss()
loader = [(torch.randn(4, 3, 4, 4), torch.randint(10, (4,))) for _ in range(66)]
"""


def run(code: str) -> None:
    """As a file that is run, so that what is under `if __name__ == "__main__"` runs too."""
    exec(compile(PREAMBLE + code, "<document>", "exec"), {"__name__": "__main__"})


@pytest.mark.filterwarnings("ignore:Starting from v1.9.0, `tensorboardX` has been removed")  # Lightning's own
@pytest.mark.parametrize("code", BLOCKS)
def test_every_example_in_the_documents_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(code)


def test_examples_for_a_file_of_their_own_run(capsys: pytest.CaptureFixture[str]) -> None:
    run("if __name__ == '__main__':\n    print('it ran')")
    assert capsys.readouterr().out == "it ran\n"


def test_the_monitor_of_the_readme_measures_more_than_once(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [block.values[0] for block in BLOCKS if "README" in str(block.id) and "Monitor(" in str(block.values[0])]
    run(str(code))
    assert len([float(line) for line in capsys.readouterr().out.splitlines() if float(line) > 0]) == 2


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 4


def test_importing_trimtab_imports_nothing_of_the_lab() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import trimtab;"
        "new = {m.split('.')[0] for m in set(sys.modules) - before};"
        "print(sorted(m for m in new if m not in sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['trimtab']"


SUBPACKAGES = (
    *("bnp", "claims", "data", "doctor", "integrations", "networks", "norms", "prediction"),
    *("probes", "records", "report", "theory", "training"),
)


def test_subpackages_are_imported_when_they_are_asked_for() -> None:
    """In a fresh process, where nothing else has imported them."""
    code = (
        "import sys, trimtab; assert 'torch' not in sys.modules; before = dir(trimtab);"
        f"print([getattr(trimtab, name).__name__ for name in {SUBPACKAGES}], dir(trimtab) == before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{[f'trimtab.{name}' for name in SUBPACKAGES]} True"


def test_dir_shows_the_public_names() -> None:
    assert dir(trimtab) == sorted(trimtab.__all__) and set(SUBPACKAGES) < set(trimtab.__all__)
    assert {path.parent.name for path in ROOT.glob("src/trimtab/*/__init__.py")} == {*SUBPACKAGES, "cli"}
    with pytest.raises(AttributeError, match="module 'trimtab' has no attribute 'probe'"):
        _ = trimtab.probe


def test_documents_name_the_two_commands_and_no_absolute_path() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in readme
    assert "make test" in readme
    for path in DOCUMENTS:
        assert not re.search(r"(?<![\w.])/(home|root|tmp|usr|opt)/", path.read_text(encoding="utf-8")), path


def test_links_between_documents_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
