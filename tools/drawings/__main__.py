# SPDX-License-Identifier: Apache-2.0
"""Writes the drawings into docs/images::

python -m tools.drawings [--check]
"""

from __future__ import annotations

from collections.abc import Sequence

from tools.drawings import copy_on_write, draft_layer, free_queue, granule, groups, look_up
from tools.generated import DOCS, write_or_check

_DRAWINGS = {
    "groups": groups,
    "granule": granule,
    "look-up": look_up,
    "copy-on-write": copy_on_write,
    "free-queue": free_queue,
    "draft-layer": draft_layer,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the drawings, or with ``--check`` return 1 if one is stale."""
    texts = {
        DOCS / "images" / f"{name}.svg": drawing.draw().svg() for name, drawing in _DRAWINGS.items()
    }
    return write_or_check(
        texts, arguments, description="Write the drawings into docs/images.", make="docs-pages"
    )


if __name__ == "__main__":
    raise SystemExit(main())
