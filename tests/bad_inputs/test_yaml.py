"""Files of settings that are none: what is said, with the line, and that nothing is left behind."""

from pathlib import Path

import pytest

from tests.bad_inputs.helpers import assert_refused

LAUGHS = "a: &a [x, x, x]\n" + "".join(
    f"{now}: &{now} [*{last}, *{last}, *{last}, *{last}]\n" for last, now in zip("abcdefghi", "bcdefghij", strict=True)
)
FILES: list[tuple[str, str | bytes, str]] = [
    ("empty", "", r"must hold settings as 'name: value', one to a line"),
    ("a comment", "# nothing\n", r"must hold settings"),
    ("a word", "bnp", r"must hold settings"),
    ("a number", "3", r"must hold settings"),
    ("a list", "- lr\n- 0.1\n", r"must hold settings"),
    ("null", "null", r"must hold settings"),
    ("a name alone", "lr:\nfoo:\n", r"line 2: there is no setting 'foo'"),
    (
        "an unknown name",
        "seed: 1\nmomentun: 0.9\n",
        r"line 2: there is no setting 'momentun'; did you mean 'momentum'\?",
    ),
    ("an empty name", "'': 3", r"line 1: there is no setting ''"),
    ("a number as a name", "1: 3", r"line 1: there is no setting '1'"),
    ("a list as a name", "[a, b]: 3", r"line 1: .*this name is a list"),
    ("a long name", f"{'x' * 900}: 3", r"line 1: there is no setting '?x+\.\.\."),
    ("markup in a name", "'[bold]': 3", r"there is no setting '\[bold\]'"),
    ("an unclosed list", "lr: 0.1\nmilestones: [1, 2\n", r"line 3, is not a YAML file: expected ',' or '\]'"),
    ("an unclosed quote", "data: 'digits\n", r"line 2, is not a YAML file: found unexpected end of stream"),
    ("a tab", "lr:\t0.1\n\tseed: 1\n", r"line 1, is not a YAML file: found character '\\t'"),
    ("two colons", "lr: 0.1: 0.2\n", r"line 1, is not a YAML file: mapping values are not allowed here"),
    ("two documents", "lr: 0.1\n---\nlr: 0.2\n", r"line 2, is not a YAML file: but found another document"),
    ("bad indentation", "lr: 0.1\n  seed: 1\n", r"line 2, is not a YAML file"),
    ("a percent sign", "%foo\nlr: 0.1\n", r"is not a YAML file"),
    ("not UTF-8", b"seed: 1\nlr: \xff\xfe\n", r"line 2, is not text in UTF-8; save it as UTF-8"),
    ("Latin-1", "seed: 1\r\n\r\ndata: é\r\n".encode("latin-1"), r"line 3, is not text in UTF-8"),
    ("a mark, and no UTF-8", b"\xef\xbb\xbfseed: 1\n\xff\n", r"line 2, is not text in UTF-8"),
    ("half of UTF-16", "seed: 1\nlr: 1".encode("utf-16")[:-1], r"line 2, is not text in UTF-16"),
    ("NUL", b"seed: 1\nlr: 0.1\0\n", r"line 2, is not a YAML file: unacceptable character #x0000"),
    ("NUL after a mark", b"\xef\xbb\xbfseed: 1\n\0\n", r"line 2, is not a YAML file: unacceptable character #x0000"),
    ("NUL in UTF-16", "seed: 1\nlr: \0".encode("utf-16"), r"line 2, is not a YAML file: unacceptable character #x0000"),
    ("an escape", "seed: 1\n# \x1b[31m\n", r"line 2, is not a YAML file: unacceptable character #x001b"),
    ("a picture", b"\x89PNG\r\n\x1a\n\0\0\0", r"line 1, is not text in UTF-8"),
    ("a doubled name", "lr: 0.1\nseed: 1\nlr: 0.2\n", r"line 3: lr is set in line 1 already"),
    ("doubled in two spellings", "batch-size: 1\nbatch_size: 2\n", r"line 2: batch_size is set in line 1 already"),
    ("doubled, the same", "lr: 0.1\nlr: 0.1\n", r"line 2: lr is set in line 1 already"),
    ("in itself", "milestones: &a [*a]\n", r"line 1: \*a refers to another place; write the value itself"),
    ("a mapping in itself", "&a lr: *a\n", r"line 1: \*a refers to another place"),
    ("a merge", "seed: 1\n<<: *a\n", r"line 2: \*a refers to another place"),
    ("a merge key", "<<: 3\n", r"line 1: there is no setting '<<'"),
    ("a billion laughs", LAUGHS, r"line 2: \*a refers to another place|line 1: there is no setting 'a'"),
    ("deep", "lr: " + "[" * 50_000, r"line 1: a setting is a word, a number or a list of these, nothing deeper"),
    ("deep lines", "".join("  " * n + "a:\n" for n in range(500)), r"line 3: a setting is a word"),
    ("deep and closed", "lr: " + "[" * 3000 + "]" * 3000, r"nothing deeper"),
    ("a list in a list", "milestones: [[1]]", r"line 1: a setting is a word"),
    ("a mapping", "lr: {a: 1}", r"line 1: lr: must be a number, not \{'a': 1\}"),
    ("large", "# " + "x" * 1_000_000, r"is larger than 1,000,000 bytes"),
    (
        "an object",
        "lr: !!python/object/apply:os.system ['true']",
        r"line 1, is not a YAML file: could not",
    ),
    ("an unknown tag", "lr: !foo 3", r"line 1, is not a YAML file: could not determine a constructor"),
    ("bytes", "data: !!binary aGVsbG8=", r"data: must be a name, not b'hello'"),
    ("a date", "seed: 2020-01-01", r"line 1: seed: must be a whole number, not datetime"),
    ("no date", "seed: 2020-13-45", r"line 1: seed: month must be in 1\.\.12"),
    ("a date as a name", "data: 2020-01-01", r"data: must be a name"),
    ("yes for a number", "lr: yes", r"line 1: lr: must be a number, not True"),
    ("no for a name", "method: no", r"method: must be a name, not False"),
    ("a number for a name", "network: 5", r"network: must be a name, not 5"),
    ("a list for a name", "data: [digits]", r"data: must be a name, not \['digits'\]"),
    ("nothing for a name", "data:", r"data: must be a name, not None"),
    ("nothing for a number", "seed:", r"seed: must be a whole number, not None"),
    ("a fraction", "epochs: 1.5", r"epochs: must be a whole number, not 1\.5"),
    ("infinity", "epochs: .inf", r"epochs: must be a whole number, not inf"),
    ("not a number", "lr: .nan", r"lr must be from 0 to 1e30, not nan"),
    ("a number in base 60", "seed: 1:30", r"line 1: seed: must be a whole number, not '1:30'"),
    ("a number in base 60 in a list", "milestones: [1, 1:30]", r"milestones: must be a whole number, not '1:30'"),
    ("a fraction in base 60", "lr: 1:30.5", r"line 1: lr: must be a number, not '1:30\.5'"),
    ("a number in base 8, read as ten", "batch_size: 64\nseed: -010", r"seed must be 0 or more, not -10"),
    ("a large seed", "seed: 1.0e+26", r"seed: must be a whole number below 2\^63, not 1e\+26"),
    ("a huge number", "seed: " + "9" * 5000, r"line 1: seed: Exceeds the limit"),
    (
        "a huge number in hex",
        "seed: 0x" + "f" * 5000,
        r"whole number below 2\^63, not something very long",
    ),
    ("a word for yes or no", "augment: maybe", r"augment: must be true or false, not 'maybe'"),
    ("a number for yes or no", "augment: 3", r"augment: must be true or false, not 3"),
    ("a wrong choice", "optimizer: SGD", r"optimizer: must be one of sgd, adam, adamw, not 'SGD'"),
    ("a list for a choice", "optimizer: [sgd]", r"optimizer: must be one of sgd, adam, adamw, not \['sgd'\]"),
    ("a fraction in a list", "milestones: [1, 2.5]", r"milestones: must be a whole number, not 2\.5"),
    ("nothing in a list", "milestones: [1, null]", r"milestones: must be a whole number, not None"),
    ("steps and epochs", "steps: 3\nepochs: 2\n", r"steps and epochs are two ways to say how long a run is"),
    ("out of range", "rho: 1.5", r"rho must be in \[0, 1\)"),
    ("a method that is none", "method: bnp+", r"there is no method 'bnp\+'"),
    ("a probe that is none", "probe: [landscape, foo]", r"there is no probe 'foo'"),
]


@pytest.mark.parametrize(("content", "sentence"), [row[1:] for row in FILES], ids=[row[0] for row in FILES])
def test_files_of_settings(
    content: str | bytes, sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "run.yaml"
    config.write_bytes(content if isinstance(content, bytes) else content.encode())
    told = ["train", "--quiet", "--out", str(tmp_path / "new" / "run"), "--config", str(config)]
    assert_refused(told, sentence, capsys, tmp_path)


@pytest.mark.parametrize(
    ("command", "content", "sentence"),
    [
        ("compare", "lr: 0.1", r"lr is decided by the comparison; leave it out there"),
        ("compare", "method: bn", r"method is decided by the comparison"),
        ("compare", "rho: 2", r"rho must be in"),
        ("probe", "seed: 1", r"no network is named"),
        ("probe", "network: small-mlp\nmethod: foo", r"there is no method 'foo'"),
        ("probe", "network: nonsense", r"no network 'nonsense'"),
        ("probe", "network: small-mlp\nprobe: foo", r"there is no probe 'foo'"),
        ("probe", "network: small-mlp\nseed: -1", r"seed must be 0 or more"),
        ("probe", "network: small-mlp\nprobe_at: x", r"line 2: probe_at: must be a whole number, not 'x'"),
        ("probe", "network: small-mlp\nprobe_at: [-1]", r"probe_at must be steps counted from 0, not \(-1,\)"),
        ("probe", "network: small-mlp\nsteps: 4\nprobe_at: 9", r"trimtab: probe_at has step 9, but there are 4 steps"),
    ],
)
def test_of_other_commands(
    command: str, content: str, sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(content)
    assert_refused([command, "--out", str(tmp_path / "new"), "--config", str(config)], sentence, capsys, tmp_path)
