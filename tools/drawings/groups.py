# SPDX-License-Identifier: Apache-2.0
"""Six groups of blocks over one pool."""

from __future__ import annotations

from tools.drawings.canvas import SMALL, Canvas

# name, kind, tokens per row, rows per block, what is needed to go on at a boundary
_GROUPS = (
    ("C4: compressed + indexer", "c4", 4, 128, "all rows before it"),
    ("C128: compressed", "c128", 128, 128, "all rows before it"),
    ("Sliding window (2 groups)", "window", 1, 128, "the last 127 tokens"),
    ("C4 compressor state", "state", 1, 8, "the last 4 tokens"),
    ("C128 compressor state", "state", 1, 32, "nothing (at 128 x n)"),
)
_POOL = (
    ("null", "scratch"),
    *(("C4", "c4"), ("C4", "c4"), ("C128", "c128"), ("window", "window"), ("window", "window")),
    *(("state", "state"), ("free", "plain"), ("C4", "c4"), ("state", "state"), ("free", "plain")),
)


def draw() -> Canvas:
    """Draw a table of the groups, and the pool with a few of its blocks."""
    canvas = Canvas(
        362,
        "Six groups of blocks over one pool",
        "Five kinds of groups, with tokens per row, rows and tokens per block at block size 128, "
        "and what each must hold to go on at a boundary; below, one pool whose numbered blocks "
        "belong to one group at a time.",
    )
    for x, label in ((20, "group"), (222, "one row"), (320, "one block"), (556, "to go on at b")):
        canvas.text(x, 30, label, role="faint", size=SMALL)
    for number, (name, kind, ratio, rows, needed) in enumerate(_GROUPS):
        y = 42 + number * 38
        canvas.box(14, y, 196, 30, kind, name)
        tokens = "1 token" if ratio == 1 else f"{ratio} tokens"
        canvas.text(222, y + 20, tokens, size=SMALL)
        covers = f"{rows} rows = {rows * ratio:,} tokens"
        canvas.text(320, y + 20, covers, size=SMALL, bold=True)
        canvas.text(556, y + 20, needed, size=SMALL)
    canvas.text(20, 262, "one pool: block i is page i of the raw memory, in every group")
    for number, (label, kind) in enumerate(_POOL):
        x = 14 + number * 63
        canvas.box(x, 274, 60, 40, kind, label)
        canvas.text(x + 30, 331, str(number), "middle", role="faint", size=SMALL)
    canvas.text(
        360, 351, "A block belongs to one group at a time.", "middle", role="faint", size=SMALL
    )
    return canvas
