# SPDX-License-Identifier: Apache-2.0
"""Counts what a scheduler holds: the entries of every container that can be reached from it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

_CONTAINERS = (dict, list, set, frozenset, tuple, deque, bytearray)


def census(root: object) -> Counter[str]:
    """Return the entries of containers, by the attributes that lead to them.

    Followed are the attributes of objects that are vLLM's or the project's, and the keys, values
    and elements of containers; ``a.b[]`` is every element of ``a.b``. Each object counts once,
    under the first way that leads to it. A deque with a bound counts as full.
    """
    entries: Counter[str] = Counter()
    seen: set[int] = set()
    queue: deque[tuple[str, Any]] = deque([("", root)])
    while queue:
        path, value = queue.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, _CONTAINERS):
            entries[path] += getattr(value, "maxlen", None) or len(value)
            queue.extend((f"{path}[]", element) for element in _elements(value))
        elif type(value).__module__.startswith("vllm"):
            queue.extend((f"{path}.{name}", held) for name, held in _attributes(value))
    return entries


def _elements(container: Any) -> Iterable[Any]:
    if isinstance(container, bytearray):
        return ()
    if isinstance(container, dict):
        return [*container, *container.values()]
    return container


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for owner in type(value).__mro__:
        slots = owner.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield name, getattr(value, name)
