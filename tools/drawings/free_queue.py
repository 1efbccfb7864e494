# SPDX-License-Identifier: Apache-2.0
"""The queues of free blocks by rank: what enters which, and which is handed out first."""

from __future__ import annotations

from tools.drawings.canvas import SMALL, Canvas

_RANKS = (
    ("scratch", "scratch", ("blocks that no hit", "can use")),
    ("spare", "state", ("tails that nothing", "asks to keep")),
    ("kept", "c4", ("prefixes, kept tails,", "least recent first")),
    ("protected", "c128", ("what came again", "(optional)")),
    ("pinned", "pinned", ("windows just left,", "oldest first (opt.)")),
)
_OPTIONAL = ("protected", "pinned")
_WIDTH, _GAP = 124, 15


def draw() -> Canvas:
    """Draw the ranks from the one given up first to the one given up last."""
    canvas = Canvas(
        326,
        "Ranks of free blocks",
        "Free blocks are handed out in this order: scratch, spare, kept, protected, pinned. "
        "Scratch holds nothing of use, spare holds tails nothing asked to keep, kept holds "
        "prefixes and kept tails, protected those of prompts that came again, pinned holds window "
        "blocks and is given up last. A hit takes a block out again.",
    )
    canvas.text(20, 30, "a request ends, or its window moves on: its blocks are freed", bold=True)
    for number, (name, kind, enters) in enumerate(_RANKS):
        x = 20 + number * (_WIDTH + _GAP)
        canvas.lines(x, 58, enters, size=SMALL, role="faint")
        canvas.line((x + _WIDTH / 2, 86), (x + _WIDTH / 2, 108), arrow=True)
        canvas.box(x, 110, _WIDTH, 64, kind, dashed=name in _OPTIONAL, round_=6)
        canvas.text(x + _WIDTH / 2, 138, name, "middle", bold=True)
        place = ("1st", "2nd", "3rd", "4th", "last")[number]
        canvas.text(x + _WIDTH / 2, 160, f"handed out {place}", "middle", size=SMALL)
        if number:
            canvas.line((x - 2, 142), (x - _GAP + 2, 142), arrow=True)
    canvas.line((20 + _WIDTH / 2, 176), (20 + _WIDTH / 2, 206), arrow=True)
    canvas.box(20, 208, _WIDTH, 44, "plain", "to a request", round_=6)
    left = 20 + _WIDTH + _GAP
    for number in range(4):
        middle = left + number * (_WIDTH + _GAP) + _WIDTH / 2
        canvas.line((middle, 176), (middle, 206), arrow=True)
    canvas.box(left, 208, 4 * _WIDTH + 3 * _GAP, 44, "window", round_=6)
    canvas.text(
        left + (4 * _WIDTH + 3 * _GAP) / 2, 235,
        "a hit takes blocks out of any of these, from any place", "middle", size=SMALL,
    )  # fmt: skip
    canvas.lines(
        20, 282, [
            "Within a rank a request's deep blocks go before its shallow ones: a prefix shrinks",
            "from its end. A spare tail that is hit is kept from then on.",
        ], size=SMALL, role="faint",
    )  # fmt: skip
    return canvas
