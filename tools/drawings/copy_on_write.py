# SPDX-License-Identifier: Apache-2.0
"""Copy-on-write of an unfinished C128 block, of which two requests make different things."""

from __future__ import annotations

from tools.drawings.canvas import SMALL, Canvas

_LEFT, _ROWS = 172, 128


def _at(row: float) -> float:
    return _LEFT + row / _ROWS * 530


def draw() -> Canvas:
    """Draw A's block before the step, the copy in the step, and both blocks after it."""
    canvas = Canvas(
        424,
        "Copy-on-write of an unfinished block",
        "Request A has written 109 rows into block 7. Request B shares its first 8,000 tokens and "
        "so hits 62 rows. Block 7 is copied to block 31 before the forward pass; then A goes on "
        "in block 7 and B in block 31.",
    )
    canvas.text(20, 28, "before: A's prompt of 14,000 tokens has filled 109 rows", bold=True)
    _block(canvas, 42, "block 7 (A's)", (("c128", 0, 62, "A = B"), ("window", 62, 109, "A")))
    canvas.text(20, 106, "B's prompt has A's first 8,000 tokens: its hit is 7,936 = 62 rows")
    canvas.line((_at(62), 72), (_at(62), 90), role="good")
    canvas.text(20, 146, "the step that B starts in, before anything is computed", bold=True)
    _block(canvas, 160, "block 7 (A's)", (("c128", 0, 62, "A = B"), ("window", 62, 109, "A")))
    _block(
        canvas, 222, "block 31 (B's)", (("c128", 0, 62, "A = B"), ("scratch", 62, 109, "left by A"))
    )
    canvas.line((_at(31), 190), (_at(31), 220), arrow=True)
    canvas.text(_at(31) + 12, 210, "the whole page is copied, in every layer", size=SMALL)
    canvas.text(_at(109) + 6, 241, "never read", size=SMALL, role="faint")
    canvas.text(20, 288, "after: each goes on in its own block", bold=True)
    _block(canvas, 302, "block 7 (A's)", (("c128", 0, 62, "A = B"), ("window", 62, 118, "A")))
    _block(
        canvas, 340, "block 31 (B's)",
        (("c128", 0, 62, "A = B"), ("state", 62, 80, "B"), ("scratch", 80, 109, "left by A")),
    )  # fmt: skip
    canvas.lines(
        20, 394, [
            "B writes its own rows from 62 on. What is left of A's lies behind B's end until B",
            "writes over it; nothing reads there. A never notices.",
        ], size=SMALL, role="faint",
    )  # fmt: skip
    return canvas


def _block(canvas: Canvas, y: float, name: str, parts) -> None:
    canvas.text(20, y + 20, name, size=SMALL)
    canvas.box(_at(0), y, 530, 30, "plain", dashed=True)
    for kind, first, end, label in parts:
        rows = f"{label}: rows {first}-{end - 1}" if end - first > 40 else label
        canvas.box(_at(first), y, _at(end) - _at(first), 30, kind, rows)
