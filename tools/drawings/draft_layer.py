# SPDX-License-Identifier: Apache-2.0
"""Why a hit is one granule shorter with an MTP layer."""

from __future__ import annotations

from tools.drawings.canvas import SMALL, Canvas

_LEFT, _GRANULE = 128, 140


def _at(granule: float) -> float:
    return _LEFT + granule * _GRANULE


def draw() -> Canvas:
    """Draw two prompts that part behind a boundary, and the MTP row that knows of it."""
    canvas = Canvas(
        348,
        "With MTP a hit is one granule shorter",
        "Two prompts agree up to boundary b. The model's own rows before b agree, too. The MTP "
        "layer's row of the last token before b was computed from the token behind b, where the "
        "prompts differ; so the hit ends one granule before b.",
    )
    canvas.text(20, 28, "A and B agree up to boundary b, and differ in the token behind it")
    names = ("b - 256", "b - 128", "b")
    for number, name in enumerate(names, start=1):
        canvas.line((_at(number), 62), (_at(number), 260), dashed=True)
        canvas.text(_at(number), 56, name, "middle", role="faint", size=SMALL)
    for y, name, kind, label in ((70, "B (new)", "window", "y"), (106, "A (cached)", "c4", "x")):
        canvas.text(20, y + 19, name, size=SMALL)
        canvas.box(_at(0), y, 3 * _GRANULE, 28, "plain", "the same tokens")
        canvas.box(_at(3), y, 26, 28, kind, label)
        canvas.box(_at(3) + 26, y, 104, 28, kind, "...")
    canvas.text(20, 173, "A's model rows", size=SMALL)
    canvas.box(_at(0), 154, 3 * _GRANULE, 28, "c4", "depend on tokens up to their own: B's as well")
    canvas.text(20, 213, "A's MTP rows", size=SMALL)
    canvas.box(_at(0), 194, 3 * _GRANULE - 26, 28, "c4", "depend on the next token, too")
    canvas.box(_at(3) - 26, 194, 26, 28, "pinned", "x")
    canvas.line((_at(3) + 13, 136), (_at(3) + 13, 208), (_at(3) + 2, 208), arrow=True)
    canvas.text(_at(3) + 26, 180, "this row was", size=SMALL)
    canvas.text(_at(3) + 26, 198, "made of x", size=SMALL)
    canvas.text(20, 253, "B's hit", size=SMALL)
    canvas.box(_at(0), 234, 2 * _GRANULE, 28, "window", "b - 128")
    canvas.text(_at(2) + 12, 253, "not b", role="bad", size=SMALL)
    canvas.lines(
        20, 294, [
            "A block remembers the granule that followed it, and serves only requests that go on",
            "alike. Stock vLLM gives up the last block of a hit instead: 16,384 tokens at block",
            "size 128.",
        ], size=SMALL, role="faint",
    )  # fmt: skip
    return canvas
