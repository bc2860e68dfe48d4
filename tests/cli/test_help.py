"""What `--help` says of the settings."""

import re

import pytest

from trimtab import cli
from trimtab.training.recipes import DEFAULTS
from trimtab.training.settings import setting_infos

SETTINGS = {setting.name: setting for setting in setting_infos()}


def help_of(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "1000")
    assert cli.main([command, "--help"]) == 0
    return capsys.readouterr().out


def test_train_shows_every_setting_in_its_group_with_choices_and_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = help_of("train", capsys, monkeypatch)
    for setting in SETTINGS.values():
        group = re.search(rf"^{setting.group}:\n(.*?)(\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
        assert group, setting.group
        flag = f"--{setting.name.replace('_', '-')}"
        entry = re.search(rf"^  {flag}[ ,].*?(?=^  --|\Z)", group[1], re.MULTILINE | re.DOTALL)
        assert entry, flag
        assert "(default: " in entry[0], flag
        assert all(choice in entry[0] for choice in setting.choices), flag


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("lr", f"recipe, else {DEFAULTS['lr']}"),
        ("steps", "recipe"),
        ("milestones", "recipe, else none"),
        ("nesterov", "recipe, else no"),
        ("rho", "0.99"),
        ("norm_layers", "all"),
        ("evaluate_on", "validation if there is one, else test"),
        ("compile", "no"),
        ("probe", "none"),
    ],
)
def test_defaults_in_words(
    name: str, default: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = help_of("train", capsys, monkeypatch)
    assert re.search(rf"^  --{name.replace('_', '-')}[ ,].*\n?.*\(default: {re.escape(default)}\)$", text, re.MULTILINE)


def test_only_a_recipe_or_a_word_stands_for_what_is_not_set() -> None:
    """A setting that no recipe ever decides says itself what happens without it."""
    decided = {*DEFAULTS, "steps"}
    for setting in SETTINGS.values():
        if setting.default is None:
            assert bool(setting.unset) != (setting.name in decided), setting.name


@pytest.mark.parametrize("command", ["compare", "probe"])
def test_other_commands_show_the_same_groups(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = help_of(command, capsys, monkeypatch)
    for group in ("optimization", "learning rate schedule", "normalization", "BNP", "execution"):
        assert f"\n{group}:\n" in text
    assert "from the recipe" in text
