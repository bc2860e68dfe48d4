"""What the documents name is there: commands, files, tests, functions, names, defaults."""

import re
import shlex
from inspect import Parameter, signature
from pathlib import Path

import pytest

import trimtab
from trimtab.cli.common import given_settings
from trimtab.cli.program import parser
from trimtab.data import DATASETS
from trimtab.networks import NETWORKS
from trimtab.norms import NORMS
from trimtab.probe_registry import PROBES
from trimtab.theory import bounds

ROOT = Path(__file__).parents[1]
DOCS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
NAMES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CLAIMS.md", *DOCS]
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in NAMES}


def commands() -> list[str]:
    """Every `trimtab ...` in an indented block or between backticks."""
    found = []
    for text in TEXTS.values():
        joined = text.replace("\\\n", " ")
        found += re.findall(r"^ {4,}(trimtab .*)$", joined, re.MULTILINE)
        found += [" ".join(each.split()) for each in re.findall(r"`(trimtab [^`]*)`", text)]
    return sorted({each.partition("  #")[0].partition(" > ")[0].strip() for each in found})


# What stands for something of the reader's.
STANDS_FOR = {"NAME": "mnist", "METHOD": "bn", "FOLDER...": "runs", "FOLDER": "runs", "RUN": "runs"}


@pytest.mark.parametrize("command", commands())
def test_commands_are_understood(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [STANDS_FOR.get(word, word) for word in shlex.split(command)[1:] if "|" not in word]  # a|b
    try:
        options = parser().parse_args(words)
    except SystemExit:
        refused = capsys.readouterr().err
        assert not refused or re.search("arguments are required|expected one argument", refused)  # only named
    else:
        if "config" in options:
            given_settings(options)


def test_there_are_commands() -> None:
    assert len(commands()) > 20


@pytest.mark.parametrize("name", NAMES)
def test_files_are_there(name: str) -> None:
    text = TEXTS[name]
    paths = re.findall(r"(?<![\w/.-])((?:src|tests|benchmarks|docs|bnp|trimtab)/[\w./*-]+\.\w+)", text)
    homes = (ROOT, ROOT / "src", ROOT / "src" / "trimtab")
    for path in paths:
        assert any(next(home.glob(path), None) for home in homes), f"{name} names {path}"


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files(name: str) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", TEXTS[name]):
        if not link.startswith(("http:", "https:")):
            assert ((ROOT / name).parent / link).exists(), f"{name} links to {link}"


def test_tests_are_there() -> None:
    defined = {
        match
        for path in (ROOT / "tests").rglob("test_*.py")
        for match in re.findall(r"^ *def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    for name, text in TEXTS.items():
        for test in re.findall(r"`(?:test_\w+\.py::)?(test_\w+)`", text):
            assert test in defined, f"{name} names {test}"


def test_functions_of_the_theorems_are_there() -> None:
    rows = [line for line in TEXTS["docs/theorems.md"].splitlines() if line.startswith("|")]
    functions = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(functions) > 25
    assert not {name for name in functions if not hasattr(bounds, name)}


def test_names_of_the_lab() -> None:
    lab = TEXTS["docs/lab.md"]
    (norms,) = re.findall(r"\*\*Norms\*\*: `([^`]*)`", lab)
    assert set(norms.split()) == set(NORMS) - {"none"}
    networks = re.findall(r"`([^`]*)`", re.findall(r"\*\*Networks\*\*: (.*?)\n\n", lab, re.DOTALL)[0])
    assert {word for each in networks for word in each.split()} == set(NETWORKS)
    data = re.findall(r"\*\*Data\*\*: (.*?)\n\n", lab, re.DOTALL)[0]
    assert all(f"`{name}`" in data for name in DATASETS)
    (probes,) = re.findall(r"^Names: (.*)\.$", TEXTS["docs/probes.md"], re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", probes)) == {*PROBES, "all"}


def test_options_of_bnp_and_their_defaults() -> None:
    shown: dict[str, str] = {}
    for row in re.findall(r"^\| (`\w+`.*?) \| (.*?) \|", TEXTS["docs/bnp.md"], re.MULTILINE):
        names, defaults = re.findall(r"`(\w+)`", row[0]), row[1].replace("`", "").split(", ")
        shown |= dict(zip(names, defaults if len(names) > 1 else [row[1].replace("`", "")], strict=True))
    parameters = list(signature(trimtab.BNP).parameters.values())[1:]
    told = {each.name: each.default for each in parameters if each.kind is Parameter.KEYWORD_ONLY}
    assert set(shown) == set(told)
    for name, default in told.items():
        assert eval(shown[name]) == default, name


def test_the_rooms_of_the_house() -> None:
    house = TEXTS["CONTRIBUTING.md"]
    rooms = {path.parent.name for path in (ROOT / "src" / "trimtab").glob("*/__init__.py")}
    assert set(re.findall(r"^  (\w+)/ ", house, re.MULTILINE)) == rooms
    listed = set(re.findall(r"\b(\w+\.py)\b", house.partition("  norms/")[0].partition("  bnp/")[2]))
    assert {path for path in listed if not list((ROOT / "src/trimtab/bnp").rglob(path))} == set()


def test_targets_of_make() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for name, text in TEXTS.items():
        for target in re.findall(r"(?:^ {4}|`)make ([\w-]+)", text, re.MULTILINE):
            assert target in targets, f"{name} names make {target}"


def test_the_first_example_prints_what_the_readme_says(capsys: pytest.CaptureFixture[str]) -> None:
    readme = TEXTS["README.md"]
    code = re.findall(r"```python\n(.*?)\n```", readme, re.DOTALL)[0]
    said = re.search(
        r"It prints ([\d.]+); without the new line ([\d.]+), and ([\d.]+) at the best of the rates", readme
    )
    assert said is not None
    line = next(line for line in code.splitlines() if "trimtab.BNP(" in line)
    plain = code.replace(line, "")

    def accuracy(code: str) -> float:
        exec(compile(code, "<README>", "exec"), {})
        return float(capsys.readouterr().out.split()[-1])

    others = [accuracy(plain.replace("lr=0.3", f"lr={rate}")) for rate in (0.003, 0.01, 0.03, 0.1)]
    found = [accuracy(code), accuracy(plain), max(others)]
    assert found == pytest.approx(
        [float(number) for number in said.groups()], abs=0.02
    )  # other processors round otherwise
