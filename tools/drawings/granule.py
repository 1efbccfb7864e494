# SPDX-License-Identifier: Apache-2.0
"""Granules, boundaries and tails: a prompt of 14,000 tokens is hit at 13,952."""

from __future__ import annotations

from tools.drawings.canvas import SMALL, Canvas

_PROMPT, _HIT, _GRANULE = 14_000, 13_952, 128
_LEFT, _RIGHT = 150, 706


def draw() -> Canvas:
    """Draw the whole prompt, and its end enlarged, group by group."""
    canvas = Canvas(
        474,
        "A prompt of 14,000 tokens, hit at 13,952",
        "Above the whole prompt on a token axis: 13,952 tokens come from the cache, 48 are "
        "computed. Below its end enlarged: the boundaries every 128 tokens, and which rows each "
        "group must hold to go on at 13,952.",
    )
    _whole(canvas)
    _end(canvas)
    return canvas


def _whole(canvas: Canvas) -> None:
    def at(token: float) -> float:
        return 20 + token / 16_384 * 686

    canvas.text(20, 28, "the whole prompt", bold=True)
    canvas.box(at(0), 40, at(_HIT) - at(0), 26, "c4", "13,952 tokens = 109 granules of 128")
    canvas.box(at(_HIT), 40, at(_PROMPT) - at(_HIT), 26, "pinned")
    canvas.box(at(0), 76, at(16_384) - at(0), 26, "plain", dashed=True)
    canvas.box(at(0), 76, at(_HIT) - at(0), 26, "c128", "C128: one block, 109 of its 128 rows")
    canvas.text(at(_PROMPT) + 8, 58, "48 to compute", size=SMALL)
    canvas.text(at(_PROMPT) + 8, 94, "to 16,384", role="faint", size=SMALL)
    canvas.line((at(_HIT - 320), 104), (_LEFT, 138), dashed=True)
    canvas.line((at(_PROMPT + 130), 104), (_RIGHT, 138), dashed=True)


def _end(canvas: Canvas) -> None:
    first, last = 13_632, 14_128

    def at(token: float) -> float:
        return _LEFT + (token - first) / (last - first) * (_RIGHT - _LEFT)

    canvas.text(20, 160, "its end, enlarged", bold=True)
    for boundary in range(13_696, last, _GRANULE):
        is_hit = boundary == _HIT
        canvas.line((at(boundary), 172), (at(boundary), 408), role="good" if is_hit else "faint")
        canvas.text(
            at(boundary), 164, f"{boundary:,}", "middle", size=SMALL, bold=is_hit,
            role="good" if is_hit else "faint",
        )  # fmt: skip
    canvas.text(20, 196, "prompt", size=SMALL)
    canvas.box(at(first), 180, at(_HIT) - at(first), 24, "c4", "from the cache")
    canvas.box(at(_HIT), 180, at(_PROMPT) - at(_HIT), 24, "pinned", "48")
    canvas.text(at(_PROMPT) + 8, 197, "to compute", size=SMALL, halo=True)
    _compressed(canvas, at, last)
    _tails(canvas, at)
    canvas.span(at(13_824), at(_HIT), 410, "one granule")
    canvas.lines(
        20, 446, [
            "Solid: rows that are read at the hit, and so must be cached.",
            "Dashed: the rest of the block. It is not read, whatever it holds.",
        ], size=SMALL, role="faint",
    )  # fmt: skip


def _compressed(canvas: Canvas, at, last: int) -> None:
    canvas.text(20, 233, "C4 blocks", size=SMALL)
    canvas.box(at(13_632), 217, at(13_824) - at(13_632), 24, "c4", "block 26, shared")
    canvas.box(at(13_824), 217, at(last) - at(13_824), 24, "plain", dashed=True)
    canvas.box(at(13_824), 217, at(_HIT) - at(13_824), 24, "c4", "block 27: 32 rows")
    canvas.text(at(_HIT) + 62, 234, "the block is copied", size=SMALL, halo=True)
    canvas.text(20, 270, "C128 block", size=SMALL)
    canvas.box(at(13_632), 254, at(last) - at(13_632), 24, "plain", dashed=True)
    canvas.box(at(13_632), 254, at(_HIT) - at(13_632), 24, "c128", "block 0: 109 rows")
    canvas.text(at(_HIT) + 62, 271, "the block is copied", size=SMALL, halo=True)


def _tails(canvas: Canvas, at) -> None:
    canvas.text(20, 307, "window blocks", size=SMALL)
    canvas.box(at(13_824), 291, at(_HIT) - at(13_824), 24, "window", "tail: 1 block")
    canvas.text(20, 344, "C4 state blocks", size=SMALL)
    canvas.box(at(13_944), 328, at(_HIT) - at(13_944), 24, "state")
    canvas.text(at(13_938), 345, "tail: 1 block of 8 tokens", "end", size=SMALL, halo=True)
    canvas.text(20, 381, "C128 state blocks", size=SMALL)
    canvas.text(
        at(13_938), 381, "nothing: its window has just closed", "end", size=SMALL, halo=True
    )
