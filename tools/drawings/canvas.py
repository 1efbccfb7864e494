# SPDX-License-Identifier: Apache-2.0
"""A small SVG canvas: boxes, text and arrows in the documentation's colours.

A drawing brings its own background, light or dark as the reader's system asks, so it can be read
on any page. Sizes are CSS pixels: at the width of a page's text one unit is about one pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

WIDTH = 720
TEXT = 14
SMALL = 13

# class -> fill and line on light and on dark paper
_KINDS = {
    "c4": ("#cfe3f7", "#1f6fb2", "#173a5c", "#7db8ec"),
    "c128": ("#e3d6f5", "#7446b3", "#3b2860", "#b995ee"),
    "window": ("#cdebd6", "#23803f", "#17432a", "#6fce8d"),
    "state": ("#fbe3bd", "#a96800", "#523603", "#eab45a"),
    "scratch": ("#eceff2", "#77818c", "#2b3138", "#96a1ad"),
    "pinned": ("#f9d5d5", "#b33636", "#5a2323", "#ee8f8f"),
    "plain": ("#ffffff", "#5d6773", "#1b2027", "#a3adb8"),
}
_PAPER, _INK, _FAINT = ("#ffffff", "#1b2027"), ("#1f2328", "#e8ecf0"), ("#59636e", "#a9b4c0")
_GOOD, _BAD, _FRAME = ("#1a7f37", "#6fce8d"), ("#b3261e", "#f08e86"), ("#d0d7de", "#3d4650")
_ROLES = {"ink": _INK, "faint": _FAINT, "good": _GOOD, "bad": _BAD}
Point = tuple[float, float]


def _style() -> str:
    def rules(dark: int) -> str:
        kinds = "".join(
            f".{name}{{fill:{colours[2 * dark]};stroke:{colours[2 * dark + 1]}}}"
            f".t-{name}{{fill:{colours[2 * dark + 1]}}}"
            for name, colours in _KINDS.items()
        )
        roles = "".join(
            f".t-{name}{{fill:{colours[dark]}}}.l-{name}{{stroke:{colours[dark]}}}"
            for name, colours in _ROLES.items()
        )
        paper = f".paper{{fill:{_PAPER[dark]};stroke:{_FRAME[dark]}}}.halo{{stroke:{_PAPER[dark]}}}"
        return f"{paper}{kinds}{roles}"

    return (
        "text{font-family:'Noto Sans','DejaVu Sans',Helvetica,Arial,sans-serif}"
        "path{fill:none;stroke-width:1.5}rect{stroke-width:1.5}"
        ".halo{stroke-width:7;paint-order:stroke}"
        f"{rules(0)}@media (prefers-color-scheme:dark){{{rules(1)}}}"
    )


class Canvas:
    """One drawing; what is added later lies on top."""

    def __init__(self, height: int, title: str, description: str) -> None:
        """Start with empty paper.

        Args:
            title: For screen readers, and as a tool tip.
            description: What the drawing says, for those who cannot see it.
        """
        self._height = height
        self._title, self._description = title, description
        self._items: list[str] = []

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        kind: str,
        label: str = "",
        *,
        size: int = SMALL,
        dashed: bool = False,
        round_: float = 3,
    ) -> None:
        """Draw a rectangle of one of the kinds, with a label in its middle."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._items.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            f'rx="{round_:g}"{dash}/>'
        )
        if label:
            self.text(x + width / 2, y + height / 2 + size * 0.36, label, "middle", size=size)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        anchor: str = "start",
        *,
        role: str = "ink",
        size: int = TEXT,
        bold: bool = False,
        halo: bool = False,
    ) -> None:
        """Write one line; ``y`` is its base line. A halo keeps lines below off the letters."""
        weight = ' font-weight="600"' if bold else ""
        over = " halo" if halo else ""
        self._items.append(
            f'<text class="t-{role}{over}" x="{x:g}" y="{y:g}" font-size="{size}" '
            f'text-anchor="{anchor}"{weight}>{escape(text)}</text>'
        )

    def lines(self, x: float, y: float, texts: Sequence[str], anchor: str = "start", **how) -> None:
        """Write several lines below each other."""
        for number, text in enumerate(texts):
            self.text(x, y + number * 18, text, anchor, **how)

    def line(self, *points: Point, role: str = "faint", arrow: bool = False, dashed: bool = False):
        """Draw a line through points, with a head at its end if it is an arrow."""
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        head = ' marker-end="url(#head)"' if arrow else ""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self._items.append(f'<path class="l-{role}" d="{path}"{head}{dash}/>')

    def span(self, start: float, end: float, y: float, label: str, *, role: str = "faint") -> None:
        """Mark a stretch of an axis from below, and say what it is."""
        self.line((start, y - 6), (start, y), (end, y), (end, y - 6), role=role)
        self.text((start + end) / 2, y + 17, label, "middle", role=role, size=SMALL)

    def svg(self) -> str:
        """Return the drawing as an SVG document."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._height}" '
            f'width="{WIDTH}" height="{self._height}" role="img" aria-labelledby="title desc">\n'
            f'<title id="title">{escape(self._title)}</title>\n'
            f'<desc id="desc">{escape(self._description)}</desc>\n'
            f"<style>{_style()}</style>\n"
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto-start-reverse"><path class="l-faint" '
            'd="M1 1L7 4L1 7"/></marker></defs>\n'
            f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{self._height - 1}" '
            'rx="8"/>\n' + "\n".join(self._items) + "\n</svg>\n"
        )
