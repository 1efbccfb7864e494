# SPDX-License-Identifier: Apache-2.0
"""Files that somebody else may have written: read within bounds, whatever they say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 20
"""The largest file; a rendered manifest of a whole deployment has some 100 KiB."""
MAX_NODES = 100_000
"""Of a YAML file, counting what an alias stands for as often as it stands there."""
MAX_DEPTH = 64
"""Of a YAML file."""


def read_bounded(path: Path | None) -> str:
    """Return the text of a file; ``None``: of standard input.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not UTF-8, or too large.
    """
    if path is None:
        text = sys.stdin.read(MAX_BYTES + 1)
    else:
        with path.open("rb") as file:  # no more of it than that, even if it has no end
            text = file.read(MAX_BYTES + 1).decode("utf-8")
    if len(text) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES >> 20} MiB")
    return text


def load_yaml(text: str) -> list[Any]:
    """Return the documents of a YAML file.

    Raises:
        yaml.YAMLError: It is none.
        ValueError: It is too deep or, with its aliases, too large; or something contains itself.
    """
    import yaml

    measure = _Measure()
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        measure.take(event)
    return list(yaml.safe_load_all(text))


class _Measure:
    """Follows the events of a file before anything is made of them."""

    def __init__(self) -> None:
        # Of what is open: its anchor, and the nodes before it
        self._open: list[tuple[str | None, int]] = []
        # By anchor: nodes and depth; nothing while it is open
        self._known: dict[str, tuple[int, int] | None] = {}
        self._deepest = [0]
        self._num_nodes = 0

    def take(self, event: Any) -> None:
        """Count what begins with an event.

        Raises:
            ValueError: It is too much.
        """
        import yaml

        if isinstance(event, yaml.CollectionStartEvent):
            self._open.append((event.anchor, self._num_nodes))
            self._deepest.append(0)
            if event.anchor:
                self._known[event.anchor] = None
            self._add(1, 0)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = self._open.pop()
            depth = self._deepest.pop() + 1
            if anchor:
                self._known[anchor] = self._num_nodes - before, depth
            self._deepest[-1] = max(self._deepest[-1], depth)
        elif isinstance(event, yaml.ScalarEvent):
            if event.anchor:
                self._known[event.anchor] = 1, 0
            self._add(1, 0)
        elif isinstance(event, yaml.AliasEvent):
            # One that nothing is called by is the parser's to refuse.
            known = self._known.get(event.anchor, (1, 0))
            if known is None:
                raise ValueError(f"&{event.anchor} contains itself")
            self._add(*known)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._known.clear()

    def _add(self, num_nodes: int, depth: int) -> None:
        self._num_nodes += num_nodes
        self._deepest[-1] = max(self._deepest[-1], depth)
        if self._num_nodes > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES:,} values, counting each alias in full")
        if len(self._open) + depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} levels deep")
