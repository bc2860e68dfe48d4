"""The page of the ledger in a real browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.claims.ledger import RECORDS, ledger
from tests.report.browser import PROGRAM, Browser
from tests.report.test_browser import COLORS, LETTERS, hexadecimal
from tests.report.test_figures import contrast
from trimtab.claims.pages.html import page

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no chromium here")

SEEN = "[...document.querySelectorAll('details.claim')].filter(one => one.checkVisibility()).map(one => one.id)"
PARTS = "[...document.querySelectorAll('section')].filter(one => one.checkVisibility()).length"
SET = """
(() => {{ const field = document.querySelector('[name="{name}"]'); field.value = '{value}';
field.dispatchEvent(new Event('input', {{bubbles: true}})); return document.querySelector('output').textContent; }})()
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "claims.html"
    path.write_text(page(ledger(*RECORDS)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_is_whole(width: int, scheme: str, browser: Browser, written: Path) -> None:
    browser.open(written, width, scheme)
    browser.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [written.resolve().as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    colors = browser.evaluate(COLORS)
    back = hexadecimal(colors[0][1])
    for front in [front for front, _ in colors] + browser.evaluate(LETTERS):
        assert contrast(hexadecimal(front), back) >= 4.5


def choose(browser: Browser, **fields: str) -> Any:
    """Fill in fields of the form; returns which claims are seen."""
    for name, value in fields.items():
        told = browser.evaluate(SET.format(name=name, value=value))
    seen = browser.evaluate(SEEN)
    assert told == f"{len(seen)} of 10 claims"
    return seen


def test_filters(browser: Browser, written: Path) -> None:
    browser.open(written)
    everything = choose(browser, text="")
    assert len(everything) == 10
    assert choose(browser, verdict="does not hold") == ["worse", "false"]
    assert choose(browser, paper="landscape") == ["false"]
    assert browser.evaluate(PARTS) == 2  # of the other paper nothing is left, not even the heading
    assert choose(browser, verdict="", kind="T") == ["false", "true"]
    assert choose(browser, paper="", kind="", text="the WORDS are vague") == ["partly"]
    assert choose(browser, paper="", text="") == everything


def test_all_can_be_unfolded_and_a_link_unfolds_its_claim(browser: Browser, written: Path) -> None:
    browser.open(written)
    unfolded = "[...document.querySelectorAll('details.claim[open]')].map(one => one.id)"
    browser.evaluate("document.querySelector('[name=open]').click()")
    assert len(browser.evaluate(unfolded)) == 10
    browser.evaluate("document.querySelector('[name=open]').click()")
    assert browser.evaluate(unfolded) == []
    browser.evaluate("location.hash = '#partly'")
    opened: list[str] = []
    for _ in range(100):  # the page hears of it in its own time
        opened = opened or browser.evaluate(unfolded)
    assert opened == ["partly"]
