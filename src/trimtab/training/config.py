"""Settings in a YAML file: a flat mapping of names to values. Nothing else of YAML is accepted."""

import codecs
import re
from pathlib import Path
from typing import Any

import yaml

from trimtab.training.settings import from_mapping

LARGEST = 1_000_000
"""Bytes of a file of settings; they are a few hundred."""
DEEPEST = 2
"""A mapping, and in it lists."""
AMBIGUOUS = re.compile(r"[-+]?0[0-9_]+|.*:.*")
"""Numbers that YAML reads in base 8 (010) or 60 (1:30), which nobody expects."""


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a YAML file, by name.

    Raises:
        ValueError: If it cannot be read, is not a mapping, or has a setting that does not exist; with the line.
    """
    content = _text(_read(path), path)
    try:
        _check_depth(content, path)
        root = yaml.compose(content, Loader=yaml.SafeLoader)
        if not isinstance(root, yaml.MappingNode):
            raise ValueError(f"{path} must hold settings as 'name: value', one to a line")
        return _settings(root, path)
    except yaml.YAMLError as error:
        raise ValueError(_not_yaml(path, error, content)) from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > LARGEST:
        raise ValueError(f"{path} is larger than {LARGEST:,} bytes, which no file of settings is")
    return content


def _text(content: bytes, path: Path) -> str:
    """The characters of a file in UTF-8, or in UTF-16 that says so."""
    utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    encoding = "utf-16" if utf16 else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        # The bytes of the error are those that the codec saw, which may be without the mark at the beginning.
        line = len((error.object[: error.start] + b"x").splitlines())
        kind = "UTF-16" if utf16 else "UTF-8"
        raise ValueError(f"{path}, line {line}, is not text in {kind}; save it as UTF-8") from error


def _check_depth(content: str, path: Path) -> None:
    """Refuse nested or self-referencing content before it is loaded, since loading it may take forever."""
    depth = 0
    for event in yaml.parse(content, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"{path}, line {line}: *{event.anchor} refers to another place; write the value itself")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"{path}, line {line}: a setting is a word, a number or a list of these, nothing deeper")


def _settings(root: yaml.MappingNode, path: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, value in root.value:
        line = key.start_mark.line + 1
        where = f"{path}, line {line}"
        if not isinstance(key, yaml.ScalarNode):
            raise ValueError(f"{where}: settings are 'name: value', and this name is a list")
        _read_plainly(value)
        try:
            content = yaml.constructor.SafeConstructor().construct_document(value)
        except ValueError as error:  # a date that there is not, a number of thousands of digits
            raise ValueError(f"{where}: {key.value}: {str(error).split(';')[0]}") from error
        setting = from_mapping({key.value: content}, where=where)
        for name in setting.keys() & lines.keys():
            raise ValueError(f"{where}: {name} is set in line {lines[name]} already; leave one of them out")
        settings |= setting
        lines |= dict.fromkeys(setting, line)
    return settings


def _read_plainly(value: yaml.Node) -> None:
    """Leave ambiguous numbers as they are written, for `from_mapping` to read as on a command line: 010 is ten."""
    for node in value.value if isinstance(value, yaml.SequenceNode) else [value]:
        if node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float") and AMBIGUOUS.fullmatch(node.value):
            node.tag = "tag:yaml.org,2002:str"


def _not_yaml(path: Path, error: yaml.YAMLError, content: str) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    where = f"{path}, line {mark.line + 1}," if mark is not None else f"{path}"
    if isinstance(error, yaml.reader.ReaderError):  # a character that YAML does not have, of which it has no mark
        where = f"{path}, line {len((content[: error.position] + 'x').splitlines())},"
    return f"{where} is not a YAML file: {problem or str(error).splitlines()[0]}"
