"""The page in a real browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report.browser import PROGRAM, Browser
from tests.report.helpers import NASTY, TEN, Plan, settings, write_comparison, write_run
from tests.report.test_figures import contrast
from trimtab.cli import main
from trimtab.cli.common import PAGE
from trimtab.report import collect, write_page

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no chromium here")

DEMO = Plan(
    sizes=(2, 1),
    diverging=(("cnn5", 2, "bn"),),
    cannot=(("cnn5", 1, "bn"), ("mlp3x100", 1, "bn")),
)
NAMES = ("demo", "ten", "nasty", "loose", "probed")
SEEN = "[...document.querySelectorAll('svg')].filter(svg => svg.checkVisibility())"
COLORS = """
[...document.querySelectorAll('body, h1, p, td, small, summary, label, code, figcaption')].map(one => [
  getComputedStyle(one).color, getComputedStyle(document.body).backgroundColor])
"""
LETTERS = "[...document.querySelectorAll('svg text')].map(one => getComputedStyle(one).fill)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    write_comparison(folder / "demo", DEMO)
    write_comparison(folder / "ten", Plan(networks=("cnn5",), sizes=(8,), methods=TEN, seeds=1))
    nasty = Plan(networks=(30 * "n",), sizes=(4, 2), methods=(NASTY,), data=NASTY, command=99 * "x", seeds=2)
    write_comparison(folder / "nasty", nasty)
    write_run(folder / "loose" / "a", settings(), until=500, verdict="diverged")
    told = ["--data", "digits", "--steps", "5", "--probe", "all", "--probe-every", "2", "--quiet", "--device", "cpu"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("trimtab.report.write_figures", lambda *_: [])  # only the page is looked at
        assert main(["probe", "small-mlp", *told, "--out", str(folder / "probed")]) == 0
    found = {name: folder / f"{name}.html" for name in NAMES if name != "probed"}
    for name, path in found.items():
        write_page(collect([folder / name]), path)
    return {**found, "probed": folder / "probed" / PAGE}


def hexadecimal(color: str) -> str:
    red, green, blue = (int(part) for part in color.removeprefix("rgb(").removesuffix(")").split(","))
    return f"#{red:02x}{green:02x}{blue:02x}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 800, 1600])
@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_whole(name: str, width: int, scheme: str, browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages[name], width, scheme)
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [pages[name].resolve().as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    seen = browser.evaluate(
        f"{SEEN}.map(svg => [svg.getBoundingClientRect().width, svg.getBoundingClientRect().height])"
    )
    assert len(seen) == {"demo": 2 + 4 + 4, "ten": 2, "nasty": 1 + 2 + 2, "loose": 1, "probed": 1 + 24}[name]
    assert all(300 <= w <= width and h > 200 for w, h in seen)
    for front, back in browser.evaluate(COLORS):
        assert contrast(hexadecimal(front), hexadecimal(back)) >= 4.5
    for front in browser.evaluate(LETTERS):
        assert contrast(hexadecimal(front), hexadecimal(back)) >= 4.5


SHORT = """
[...document.querySelectorAll('td, th')].filter(one => {
  const range = document.createRange();
  range.selectNodeContents(document.createTreeWalker(one, NodeFilter.SHOW_TEXT).nextNode() ?? one);
  const lines = new Set([...range.getClientRects()].map(box => Math.round(box.top))).size;
  return one.checkVisibility() && !one.innerText.trim().includes(' ') && one.innerText.length < 8 && lines > 1;
}).map(one => one.innerText)
"""


@pytest.mark.parametrize("name", ["demo", "loose"])
def test_short_words_in_tables_are_not_broken(name: str, browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages[name], 400, "light")
    assert browser.evaluate(SHORT) == []


def test_schemes_differ(browser: Browser, pages: dict[str, Path]) -> None:
    backs = []
    for scheme in ("light", "dark"):
        browser.open(pages["demo"], 800, scheme)
        backs.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert backs == ["rgb(255, 255, 255)", "rgb(21, 24, 28)"]


def test_letters_in_figures_can_be_read_and_are_not_cut_off(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["ten"], 400)
    sizes = browser.evaluate(
        f"{SEEN}.flatMap(svg => [...svg.querySelectorAll('text')].map(text => ["
        "text.getBoundingClientRect().height, text.getBoundingClientRect().width,"
        "text.getBoundingClientRect().left - svg.getBoundingClientRect().left,"
        "svg.getBoundingClientRect().right - text.getBoundingClientRect().right]))"
    )
    assert sizes
    for height, width, left, right in sizes:
        assert min(height, width) > 5 and max(height, width) >= 10
        assert left >= -1 and right >= -1


def test_the_switch_works_by_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["demo"])
    shown = "['steps', 'time'].map(name => document.querySelector('.against-' + name).checkVisibility())"
    assert browser.evaluate(shown) == [True, False]
    for _ in range(10):
        browser.press("Tab")
        if browser.evaluate("document.activeElement.className") == "by-steps":
            break
    assert browser.evaluate("document.activeElement.className") == "by-steps"
    assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press("ArrowRight")
    assert browser.evaluate(shown) == [False, True]
    browser.press("ArrowLeft")
    assert browser.evaluate(shown) == [True, False]


def test_boxes_that_scroll_and_values_can_be_reached_by_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["demo"], 400)
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.getAttribute('aria-label')") == "results"
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.tagName") == "SUMMARY"
    browser.press("Enter")
    assert browser.evaluate("document.activeElement.parentElement.open")


@pytest.mark.parametrize("name", NAMES)
def test_on_a_narrow_screen_results_are_cards_with_all_columns_in_sight(
    name: str, browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages[name], 400)
    places = browser.evaluate(
        "[...document.querySelectorAll('.stack td')].filter(one => one.checkVisibility()).map(one => ["
        "one.getBoundingClientRect().left, one.getBoundingClientRect().right, one.scrollWidth - one.clientWidth,"
        "getComputedStyle(one, '::before').content])"
    )
    assert places
    for left, right, hidden, label in places:
        assert left >= 0 and right <= 400 and hidden <= 1
        assert len(label) > 2  # in quotes
    browser.open(pages[name], 1400)
    assert browser.evaluate("getComputedStyle(document.querySelector('.stack td'), '::before').content") == "none"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_table_that_scrolls_keeps_its_first_column_and_has_a_shade(
    scheme: str, browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["probed"], 400, scheme)
    browser.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
    wide = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth + 5)"
    assert browser.evaluate(f"{wide}.length") > 3
    browser.evaluate(f"{wide}.forEach(one => {{ one.scrollLeft = 1e4; one.scrollTop = 1e4 }})")
    found = browser.evaluate(
        f"{wide}.flatMap(box => ['thead', 'tbody'].map(part => [...box.querySelectorAll(part + ' th')][0]).map(one => ["
        "one.getBoundingClientRect().left - box.getBoundingClientRect().left, box.scrollLeft,"
        "getComputedStyle(one).backgroundColor, getComputedStyle(box).backgroundImage]))"
    )
    for left, scrolled, back, shade in found:
        assert scrolled > 0 and abs(left) < 1  # it has stayed where it was
        assert back == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 28)"}[scheme]
        assert "rgba(255, 255, 255, 0.25)" in shade if scheme == "dark" else "rgba(0, 0, 0, 0.2)" in shade


def test_settings_left_at_their_defaults_are_folded(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["probed"], 1400)
    seen = "[...document.querySelectorAll('th')].filter(one => one.checkVisibility()).map(one => one.innerText)"
    assert {"lr", "steps", "probe every"} <= {*browser.evaluate(seen)} and "eps1" not in browser.evaluate(seen)
    browser.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert "eps1" in browser.evaluate(seen)


def test_the_page_can_be_printed(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["demo"], 800, "dark", "print")
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(browser.evaluate(f"{SEEN}.map(svg => 1)")) == 2 + 8 + 4  # steps and time
    printed = browser.pdf()
    assert printed.startswith(b"%PDF") and printed.count(b"/Type /Page\n") > 1
