# SPDX-License-Identifier: Apache-2.0
"""The drawings can be read: large enough, and on light as on dark paper."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tools.drawings import canvas
from tools.drawings.__main__ import _DRAWINGS

SVG = "{http://www.w3.org/2000/svg}"
LIGHT, DARK = 0, 1


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (
        c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("name", _DRAWINGS)
def test_text_is_large_enough_and_inside_the_paper(name: str) -> None:
    drawing = ElementTree.fromstring(_DRAWINGS[name].draw().svg())
    height = float(drawing.attrib["height"])
    for text in drawing.iter(f"{SVG}text"):
        assert int(text.attrib["font-size"]) >= 12
        assert 0 < float(text.attrib["x"]) < canvas.WIDTH
        assert 0 < float(text.attrib["y"]) < height


@pytest.mark.parametrize("name", _DRAWINGS)
def test_a_drawing_says_what_it_shows(name: str) -> None:
    drawing = ElementTree.fromstring(_DRAWINGS[name].draw().svg())
    for tag in ("title", "desc"):
        element = drawing.find(f"{SVG}{tag}")
        assert element is not None and element.text


@pytest.mark.parametrize("paper", [LIGHT, DARK])
def test_text_stands_out_from_every_colour(paper: int) -> None:
    for kind, colours in canvas._KINDS.items():
        assert contrast(canvas._INK[paper], colours[2 * paper]) >= 7, kind
    for role, colours in canvas._ROLES.items():
        assert contrast(colours[paper], canvas._PAPER[paper]) >= 4.5, role


def test_both_papers_are_in_every_drawing() -> None:
    for drawing in _DRAWINGS.values():
        svg = drawing.draw().svg()
        assert canvas._PAPER[LIGHT] in svg and canvas._PAPER[DARK] in svg
        assert re.search(r"@media \(prefers-color-scheme:dark\)", svg)
