# SPDX-License-Identifier: Apache-2.0
"""A look-up: the compressed groups from the left, then boundaries from the right."""

from __future__ import annotations

from tools.drawings.canvas import SMALL, Canvas

_LEFT, _GRANULE = 150, 54
_C4, _C128, _TAILS = 9, 8, (3, 6)


def _at(boundary: float) -> float:
    return _LEFT + boundary * _GRANULE


def draw() -> Canvas:
    """Draw ten granules, what is cached of them, and the two passes of a look-up."""
    canvas = Canvas(
        372,
        "How a hit is found",
        "First pass: C4 is cached up to boundary 9 and C128 up to boundary 8, so the match is 8. "
        "Second pass: boundaries are tried downwards; 8 and 7 have no tails, 6 has, so the hit "
        "ends at 6, and 8 is remembered as a junction.",
    )
    for boundary in range(11):
        canvas.text(_at(boundary), 62, str(boundary), "middle", role="faint", size=SMALL)
    canvas.text(20, 28, "1. Compressed groups: the longest match, from the left", bold=True)
    canvas.text(20, 62, "boundary", role="faint", size=SMALL)
    for y, name, kind, cached in ((72, "C4", "c4", _C4), (106, "C128", "c128", _C128)):
        canvas.text(20, y + 18, f"{name} rows", size=SMALL)
        canvas.box(_at(0), y, _at(cached) - _at(0), 26, kind, f"cached up to {cached}")
        canvas.box(_at(cached), y, _at(10) - _at(cached), 26, "plain", dashed=True)
    canvas.line((_at(8), 68), (_at(8), 190), role="good", dashed=True)
    canvas.text(_at(8) - 8, 152, "match: 8", "end", role="good", bold=True)
    canvas.text(20, 184, "2. The other groups: boundaries from the match downwards", bold=True)
    _tails(canvas)
    canvas.box(_at(0), 286, _at(6) - _at(0), 30, "window", "hit: granules 0 to 5 are not computed")
    canvas.text(20, 306, "result", size=SMALL)
    canvas.text(_at(6) + 10, 306, "8 is remembered as a junction:", size=SMALL)
    canvas.lines(
        20, 338, [
            "When this request computes past boundary 8, its tails are kept there: the next prompt",
            "that leaves the prefix at the same place is hit at 8.",
        ], size=SMALL, role="faint",
    )  # fmt: skip
    return canvas


def _tails(canvas: Canvas) -> None:
    canvas.text(20, 230, "tails cached", size=SMALL)
    for boundary in _TAILS:
        canvas.box(_at(boundary) - 40, 212, 26, 26, "window")
        canvas.box(_at(boundary) - 14, 212, 14, 26, "state")
    for boundary in (7, 8):
        canvas.box(_at(boundary) - 40, 212, 40, 26, "plain", dashed=True)
    for boundary, mark, role in ((8, "no", "bad"), (7, "no", "bad"), (6, "yes", "good")):
        canvas.text(_at(boundary) - 14, 262, mark, "middle", role=role, bold=True)
    canvas.line((_at(8) - 30, 257), (_at(7) + 4, 257), arrow=True)
    canvas.line((_at(7) - 30, 257), (_at(6) + 4, 257), arrow=True)
