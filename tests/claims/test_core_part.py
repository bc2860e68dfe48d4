"""The language of criteria."""

import pytest

from trimtab.claims.part import Part, parse_parts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("acc: bnp ≈ bn", Part("", "compare", measure="acc", case="bnp", op="≈", other="bn")),
        ("acc: bnp ≈ bn ± 2", Part("", "compare", measure="acc", case="bnp", op="≈", other="bn", margin=2.0)),
        ("gap: bn ≤ 0.7 × wn", Part("", "compare", measure="gap", case="bn", op="≤", factor=0.7, other="wn")),
        ("acc: bn ≥ vanilla − 1", Part("", "compare", measure="acc", case="bn", op="≥", other="vanilla", offset=-1.0)),
        ("acc: bn ≤ chance + 2", Part("", "compare", measure="acc", case="bn", op="≤", other="chance", offset=2.0)),
        ("share, all: all ≥ 0.8", Part("", "compare", measure="share, all", case="all", op="≥", offset=0.8)),
        ("x: a > -1e-3", Part("", "compare", measure="x", case="a", op=">", offset=-1e-3)),
        ("slope: bn in [-1.3, -0.7]", Part("", "range", measure="slope", case="bn", low=-1.3, high=-0.7)),
        (
            "drop @ fc-60: wn+mean-bn ≪ bnp+gn",
            Part("", "compare", experiment="fc-60", measure="drop", case="wn+mean-bn", op="≪", other="bnp+gn"),
        ),
        ("vloss: M=256 ⪡ M=64", Part("", "compare", measure="vloss", case="M=256", op="⪡", other="M=64")),
        ("check centring @ theorems", Part("", "check", experiment="theorems", name="centring")),
        ("claim landscape-thm41", Part("", "claim", name="landscape-thm41")),
        ("function rates_near_printed", Part("", "function", name="rates_near_printed")),
    ],
)
def test_forms(text: str, expected: Part) -> None:
    found = Part.parse(text)
    assert found.text == text
    assert {name: getattr(found, name) for name in Part.__slots__ if name != "text"} == {
        name: getattr(expected, name) for name in Part.__slots__ if name != "text"
    }


@pytest.mark.parametrize(
    "text",
    [
        *("", "acc bnp > bn", "acc: bnp", "acc: bnp = bn", "acc: bnp >", "acc: a in [2, 1]", "acc: a > b ± 2"),
        *("not: x: a > b; x: b > c", "all: x: a > b", "any: x: a > b; y"),
        *("all: x @ e: a > b; y: a > b", "not: x @ e: a > b", "all: x: a > b; claim c: d"),
        *("acc: a > 0.5 × 64", "acc: a ≥ 3 + 2", "check", "claim a b", "acc: bnp  > bn", "acc: a > b + c"),
    ],
)
def test_what_is_no_part(text: str) -> None:
    with pytest.raises(ValueError, match="part "):
        Part.parse(text)


def test_labels() -> None:
    assert [part.label for part in parse_parts(["check a"])] == [""]
    assert [part.label for part in parse_parts(["check a"] * 28)][::25] == ["a", "z"]
    assert [part.label for part in parse_parts(["check a"] * 28)][26:] == ["aa", "ab"]
