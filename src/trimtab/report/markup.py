"""Small pieces of HTML. What comes from records is escaped here and nowhere else."""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files

from trimtab.report.styles import DARK, LIGHT

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(content: object) -> Markup:
    """Anything as HTML; what is HTML already stays as it is."""
    return content if isinstance(content, Markup) else Markup(escape(str(content)))


def element(name: str, *content: object, **attributes: str) -> Markup:
    """An element. Attributes that are Python's words have an underscore behind them."""
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{written}>{''.join(map(text, content))}</{name}>")


def table(
    head: Sequence[object],
    rows: Iterable[Sequence[object]],
    label: str,
    *,
    headers: int = 1,
    words: bool = False,
    caption: str = "",
    stack: bool = False,
) -> Markup:
    """A table in a box of its own, which scrolls where the screen is too narrow; a shade tells where there is more.

    Args:
        head: The columns' names.
        rows: The rows.
        label: What the table is, for who cannot see it.
        headers: How many cells at the beginning of a row say what the row is about.
        words: Whether there are words in it rather than numbers.
        caption: What stands above it.
        stack: Whether on a narrow screen each row is a card instead, with the columns' names beside the values.
    """
    lines = []
    for row in rows:
        cells = []
        for place, (name, cell) in enumerate(zip(head, row, strict=True)):
            options = {"scope": "row"} if place < headers else {}
            if stack and place:
                options["data_label"] = str(name)
            cells.append(element("th" if place < headers else "td", cell, **options))
        lines.append(element("tr", *cells))
    names = [element("th", cell, scope="col", class_="name") for cell in head[:headers]]
    columns = element("thead", element("tr", *names, *(element("th", cell, scope="col") for cell in head[headers:])))
    above = element("caption", element("span", caption)) if caption else ""
    content = element("table", above, columns, element("tbody", *lines), class_="words" if words else "numbers")
    kind = "scroll stack" if stack else "scroll"
    return element("div", content, class_=kind, tabindex="0", role="region", aria_label=label)


def folded(summary: str, content: object) -> Markup:
    """Something that shows when its summary is clicked on, or entered from the keyboard."""
    return element("details", element("summary", summary), content)


def paragraphs(sentences: Iterable[object]) -> Markup:
    """A list of sentences; a single one is a paragraph."""
    texts = list(sentences)
    if len(texts) == 1:
        return element("p", texts[0])
    return element("ul", *(element("li", one) for one in texts))


def document(title: str, body: Iterable[object], *, style: str = "", script: str = "") -> str:
    """A whole page.

    Args:
        title: Of the page.
        body: What is in it.
        style: Rules beside those that all pages have.
        script: The page's own program. No other one is let run.
    """
    program = f"<script>{script}</script>\n" if script else ""
    policy = f"{POLICY}; script-src 'sha256-{_digest(script)}'" if script else POLICY
    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<link rel="icon" href="data:,">'
    )
    content = "\n".join(map(text, body))
    head += f"{element('title', title)}<style>\n{_style()}{style}</style>"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n'
        f"<body><main>\n{content}\n</main>\n{program}</body></html>\n"
    )


def _digest(script: str) -> str:
    return b64encode(sha256(script.encode()).digest()).decode()


def _style() -> str:
    def colors(palette: dict[str, str]) -> str:
        return " ".join(f"--{name}: {color};" for name, color in palette.items())

    dark = f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {colors(DARK)} }} }}\n"
    sheet = (files("trimtab.report") / "style.css").read_text(encoding="utf-8")
    return f":root {{ color-scheme: light dark; {colors(LIGHT)} }}\n{dark}{sheet}"
