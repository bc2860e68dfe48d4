"""Settings in a YAML file: names with values, one to a line, and nothing else that YAML can do."""

from pathlib import Path
from typing import Any

import yaml

from trimtab.training.settings import from_mapping

LARGEST = 1_000_000
"""Bytes of a file of settings; they are a few hundred."""
DEEPEST = 2
"""A mapping, and in it lists."""


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a YAML file, by name.

    Raises:
        ValueError: If it cannot be read, is not a mapping, or has a setting that does not exist; with the line.
    """
    content = _read(path)
    try:
        _check_depth(content, path)
        root = yaml.compose(content, Loader=yaml.SafeLoader)
        if not isinstance(root, yaml.MappingNode):
            raise ValueError(f"{path} must hold settings as 'name: value', one to a line")
        return _settings(root, path)
    except yaml.YAMLError as error:
        raise ValueError(_not_yaml(path, error)) from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > LARGEST:
        raise ValueError(f"{path} is larger than {LARGEST:,} bytes, which no file of settings is")
    return content


def _check_depth(content: bytes, path: Path) -> None:
    """Refuse what is nested or refers to itself, before anything follows it, which may take forever."""
    depth = 0
    for event in yaml.parse(content, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"{path}, line {line}: *{event.anchor} refers to another place; write the value itself")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"{path}, line {line}: a setting is a word, a number or a list of these, nothing deeper")


def _settings(root: yaml.MappingNode, path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, value in root.value:
        line = key.start_mark.line + 1
        where = f"{path}, line {line}"
        if not isinstance(key, yaml.ScalarNode):
            raise ValueError(f"{where}: settings are 'name: value', and this name is a list")
        try:
            content = yaml.constructor.SafeConstructor().construct_document(value)
        except ValueError as error:  # a date that there is not, a number of thousands of digits
            raise ValueError(f"{where}: {key.value}: {str(error).split(';')[0]}") from error
        told = from_mapping({key.value: content}, where=where)
        for name in told.keys() & lines.keys():
            raise ValueError(f"{where}: {name} is set in line {lines[name]} already; leave one of them out")
        found |= told
        lines |= dict.fromkeys(told, line)
    return found


def _not_yaml(path: Path, error: yaml.YAMLError) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    where = f"{path}, line {mark.line + 1}," if mark is not None else f"{path}"
    return f"{where} is not a YAML file: {problem or str(error).splitlines()[0]}"
