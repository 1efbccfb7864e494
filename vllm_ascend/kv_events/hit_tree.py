# SPDX-License-Identifier: Apache-2.0
"""All cached prefixes of an engine as a tree of granules, and at which of them a look-up may end.

A router asks about one prompt (``PrefixIndex``, the reference for routers); this answers for
all that go through a granule, and keeps the answers up to date as events come: an event costs what
it changes, not what is cached.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from vllm_ascend.kv_events.layout import PLACE_BITS, EventReader, GroupRule, freeze, placed_name

# What is left of an integer name in those of the units inside its granule.
_KEPT_BITS_MASK = (1 << 64 - PLACE_BITS) - 1


@dataclass(slots=True, eq=False)
class Granule:
    """One granule of a cached prefix, and what is known of the prefix that it ends.

    Attributes:
        name: What stands for the whole prefix; ``None`` at the root.
        parent: The name in front of it.
        end: Tokens of the prefix.
        token_ids: The granule's.
        extra_keys: What its hash covers besides them.
        lora: The adapter's number and name.
        is_reachable: Every group of rule ``prefix`` holds all of the prefix.
        is_hit: A prompt that goes on behind it is hit up to here, or further on.
        hits_everywhere: So is it at every boundary before.
        num_longer: 1 if ``is_hit``, plus the children for which this is not 0.
    """

    name: Hashable
    parent: Hashable
    end: int
    token_ids: Sequence[int] = ()
    extra_keys: Any = None
    lora: tuple[int | None, str | None] = (None, None)
    is_reachable: bool = False
    is_hit: bool = False
    hits_everywhere: bool = False
    num_longer: int = 0


_NOTHING = Granule(None, None, 0)


class HitTree(EventReader):
    """What one engine (one data parallel rank of it) has cached."""

    def __init__(self) -> None:
        super().__init__()
        self._hash_tokens = self._reach = 0
        self._prefix: list[tuple[int, GroupRule]] = []
        self._tails: list[tuple[int, GroupRule]] = []
        self._can_hit = False
        self._forget()

    def _forget(self) -> None:
        self._root = Granule(None, None, 0, is_reachable=True, hits_everywhere=True)
        self._granules: dict[Hashable, Granule] = {None: self._root}
        self._children: defaultdict[Hashable, set[Hashable]] = defaultdict(set)
        # What a granule's name leaves in the names of the units inside it -> such granules.
        self._with_key: defaultdict[Hashable, set[Hashable]] = defaultdict(set)
        self._names: defaultdict[int, set[Hashable]] = defaultdict(set)
        # (announced group, name) -> successors behind it, and the other way round
        self._successors: defaultdict[tuple[int, Hashable], set[Hashable]] = defaultdict(set)
        self._precedes: dict[tuple[int, Hashable], Hashable] = {}
        self._dirty: set[Hashable] = set()

    @property
    def alignment(self) -> int:
        """Hits are multiples of this, in tokens; 0 while it is not known."""
        return self._engine.alignment if self._engine else 0

    def up_to(self, granule: Granule, num_tokens: int) -> list[Granule]:
        """Return the granules of the last tokens of a prefix, in order."""
        path = [granule]
        while len(path) * self._hash_tokens < num_tokens:
            path.append(self._granules[path[-1].parent])
        return path[::-1]

    # Events

    def _stored(self, group: int, event: Any) -> None:
        names, parent = self._names[group], event.parent_block_hash
        is_prefix = self._rules.get(group, GroupRule("other", 0)).rule == "prefix"
        for i, name in enumerate(event.block_hashes):
            names.add(name)
            if is_prefix and name not in self._granules:
                self._add(name, parent, event, i)
            elif self._engine is not None and group >= self._engine.num_groups:
                self._successors[group, parent].add(name)
                self._precedes[group, name] = parent
                self._dirty.add(parent)
            self._touch(name)
            parent = name

    def _add(self, name: Hashable, parent: Hashable, event: Any, i: int) -> None:
        above = self._granules.get(parent)
        if above is None:
            return  # not reachable, and never will be: engines cache what is in front of it first
        size = event.block_size
        self._granules[name] = Granule(
            name,
            parent,
            above.end + size,
            array("I", event.token_ids[i * size : (i + 1) * size]),
            freeze(event.extra_keys[i]) if event.extra_keys else None,
            (event.lora_id, event.lora_name),
        )
        self._children[parent].add(name)
        self._with_key[_keys(name)[0]].add(name)

    def _removed(self, group: int, names: Sequence[Hashable]) -> None:
        for name in names:
            self._names[group].discard(name)
            parent = self._precedes.pop((group, name), None)
            if parent is not None:
                self._successors[group, parent].discard(name)
                self._dirty.add(parent)
            self._touch(name)

    def _cleared(self) -> None:
        self._forget()

    def _touch(self, name: Hashable) -> None:
        """A unit of this name came or went."""
        for key in _keys(name):
            self._dirty |= self._with_key.get(key, frozenset())

    # What follows from them

    def settle(self) -> set[Granule]:
        """Bring all granules up to date; return those that may have changed, or are gone."""
        if not self.is_ready:
            return set()
        self._prepare()
        changed: set[Granule] = set()
        heap = [(self._granules[name].end, name) for name in self._within_reach(self._dirty)]
        heapify(heap)
        seen: set[Hashable] = set()
        while heap:
            _, name = heappop(heap)
            if name in seen:
                continue
            seen.add(name)
            if self._judge(self._granules[name], changed):
                for child in self._children.get(name, ()):
                    heappush(heap, (self._granules[child].end, child))
        for name in self._dirty:
            self._drop_if_gone(name)
        self._dirty.clear()
        return changed

    def _prepare(self) -> None:
        assert self._engine is not None
        self._hash_tokens = self._engine.hash_tokens
        self._prefix = [(g, r) for g, r in self._rules.items() if r.rule == "prefix"]
        self._tails = [(g, r) for g, r in self._rules.items() if r.rule == "tail"]
        self._can_hit = len(self._prefix) + len(self._tails) == self._engine.num_groups
        longest = max((r.tail_tokens + r.unit_tokens for _, r in self._tails), default=0)
        self._reach = -(-longest // self._hash_tokens) + 1

    def _within_reach(self, names: set[Hashable]) -> set[Hashable]:
        """Return granules, and those behind them whose hits may rest on them."""
        found = {name for name in names if name in self._granules and name is not None}
        level = found
        for _ in range(self._reach):
            level = {child for name in level for child in self._children.get(name, ())} - found
            if not level:
                break
            found = found | level
        return found

    def _judge(self, granule: Granule, changed: set[Granule]) -> bool:
        """Bring one granule up to date; return whether those behind it have to be as well."""
        assert self._engine is not None
        above = self._granules.get(granule.parent, _NOTHING)
        before = granule.is_reachable, granule.hits_everywhere, granule.is_hit
        granule.is_reachable = above.is_reachable and self._is_held(granule)
        is_boundary = granule.end % self._engine.alignment == 0
        granule.is_hit = granule.is_reachable and is_boundary and self._has_tails(granule)
        granule.hits_everywhere = (
            granule.is_reachable and above.hits_everywhere and (granule.is_hit or not is_boundary)
        )
        changed.add(granule)
        if granule.is_hit != before[2]:
            self._count_longer(granule, 1 if granule.is_hit else -1, changed)
        return (granule.is_reachable, granule.hits_everywhere) != before[:2]

    def _count_longer(self, granule: Granule, change: int, changed: set[Granule]) -> None:
        while granule is not self._root:
            was_some = granule.num_longer > 0
            granule.num_longer += change
            changed.add(granule)
            if (granule.num_longer > 0) == was_some:
                return
            granule = self._granules[granule.parent]

    def _is_held(self, granule: Granule) -> bool:
        """Whether all groups of rule ``prefix`` hold it; drafts: in front of it as well."""
        assert self._engine is not None
        num_groups = self._engine.num_groups
        return self._can_hit and all(
            granule.name in self._names[group]
            and (
                not rule.is_draft
                or granule.parent is None
                or granule.name in self._names[group + num_groups]
            )
            for group, rule in self._prefix
        )

    def _has_tails(self, granule: Granule) -> bool:
        """Whether all units are there that a hit at the granule's end needs at least once."""
        assert self._engine is not None
        path = self.up_to(granule, min(self._reach * self._hash_tokens, granule.end))
        followed = [group for group, rule in self._prefix if rule.is_draft]
        for group, rule in self._tails:
            for end in _unit_ends(rule, granule.end):
                inside = end % self._hash_tokens
                around = path[-1 - (granule.end - end) // self._hash_tokens].name
                if inside:
                    held, name = group, placed_name(around, inside // rule.unit_tokens)
                elif not rule.is_draft:
                    held, name = group, around
                elif end < granule.end:
                    held = group + self._engine.num_groups
                    name = path[-(granule.end - end) // self._hash_tokens].name
                else:
                    followed.append(group)
                    continue
                if name not in self._names[held]:
                    return False
        return self._is_followed(granule, followed)

    def _is_followed(self, granule: Granule, groups: Sequence[int]) -> bool:
        """Whether some granule behind this one will do for all draft layers of the groups."""
        assert self._engine is not None
        num_groups = self._engine.num_groups
        successors = [self._successors[group + num_groups, granule.name] for group in groups]
        return not successors or bool(set.intersection(*successors))

    def _drop_if_gone(self, name: Hashable) -> None:
        granule = self._granules.get(name)
        if granule in (None, self._root) or any(name in self._names[g] for g, _ in self._prefix):
            return
        assert granule is not None
        del self._granules[name]
        self._children[granule.parent].discard(name)
        self._with_key[_keys(name)[0]].discard(name)


def _unit_ends(rule: GroupRule, boundary: int) -> Iterator[int]:
    """Yield the ends of the units that a hit at a boundary rests on."""
    size = rule.unit_tokens
    first = max(boundary - rule.tail_tokens, 0) // size * size
    yield from range(first + size, boundary // size * size + 1, size)


def _keys(name: Hashable) -> tuple[Hashable, ...]:
    """Return by what granules are found: if the name is a granule's, and if a unit's inside one."""
    if isinstance(name, int):
        return name & _KEPT_BITS_MASK, name >> PLACE_BITS
    assert isinstance(name, bytes)
    return name, name[: -PLACE_BITS // 8]
