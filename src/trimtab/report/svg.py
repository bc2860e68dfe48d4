"""A drawn figure as part of a page."""

import re
from xml.etree import ElementTree

from trimtab.report.styles import LIGHT

_VARIABLES = {color: f"var(--{name})" for name, color in LIGHT.items()}
_COLOR = re.compile(r"#[0-9a-f]{6}\b")
_REFERENCE = re.compile(r"url\(#([^)]*)\)")


def inline(drawn: bytes, prefix: str, alt: str) -> str:
    """An SVG file as an element of a page.

    Its colours become variables of the page's style sheet, its text takes the page's font, and its ids begin with a
    prefix, since a page may have each id once only.
    """
    root = ElementTree.fromstring(drawn)
    # The file's own style sheet would hold for the whole page; its metadata are of no use there.
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
    referred = {_reference(value) for element in root.iter() for value in element.attrib.values()} - {None}
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.tail = None
        element.text = element.text if (element.text or "").strip() else None
        element.attrib = {
            name.rpartition("}")[2]: _attribute(name.rpartition("}")[2], value, prefix)
            for name, value in element.attrib.items()
            if name != "id" or value in referred
        }
    size = root.attrib["viewBox"]
    root.attrib = {"viewBox": size, "role": "img", "aria-label": alt}
    return ElementTree.tostring(root, encoding="unicode")


def _reference(value: str) -> str | None:
    match = _REFERENCE.search(value)
    return match[1] if match else value[1:] if value.startswith("#") else None


def _attribute(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return f"{prefix}{value}"
    if name == "href" and value.startswith("#"):  # others are pictures within the drawing
        return f"#{prefix}{value[1:]}"
    if name == "style":
        value = re.sub(r"font: ([\d.]+px)[^;]*", r"font-size: \1", value)
        value = _COLOR.sub(lambda color: _VARIABLES.get(color[0], color[0]), value)
    return _REFERENCE.sub(rf"url(#{prefix}\1)", value)
