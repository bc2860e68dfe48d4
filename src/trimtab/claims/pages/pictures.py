"""Figures of the ledger as PNG files: small, and each with a digest of what is drawn in it."""

import io
import json
from dataclasses import asdict
from functools import partial
from hashlib import sha256

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from trimtab.claims.pages.figures import PaperFigure
from trimtab.report.figures import rendered
from trimtab.report.line_figures import draw_panels

LOOK = 1
"""To be raised when figures are drawn in another way, so that all pictures are drawn anew."""
COLORS = 128
"""Of a picture; lines and their shades need no more."""
DPI = 96
_KEY = "trimtab"


def digest(figure: PaperFigure) -> str:
    """Of all that is drawn, so that a picture can be told from one of other records."""
    drawn = [figure.title, [asdict(one.panel) for one in figure.panels], LOOK]
    return sha256(json.dumps(drawn, ensure_ascii=False, sort_keys=True).encode()).hexdigest()[:16]


def picture(figure: PaperFigure) -> bytes:
    """A figure as a PNG file; the same bytes every time, with one version of matplotlib."""
    panels = [one.panel for one in figure.panels]
    content = rendered(partial(draw_panels, panels, figure.title), "png", DPI)
    drawn = Image.open(io.BytesIO(content)).convert("RGB").quantize(COLORS, Image.Quantize.MAXCOVERAGE, kmeans=1)
    about = PngInfo()
    about.add_text(_KEY, digest(figure))
    buffer = io.BytesIO()
    drawn.save(buffer, "png", optimize=True, pnginfo=about)
    return buffer.getvalue()


def digest_in(content: bytes) -> str | None:
    """The digest of what is drawn in a picture; None if it has none."""
    try:
        with Image.open(io.BytesIO(content)) as found:
            return found.info.get(_KEY)
    except OSError:
        return None
