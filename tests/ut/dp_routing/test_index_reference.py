# SPDX-License-Identifier: Apache-2.0
"""The index of all ranks against a plain reference: sets per rank, and hits by brute force."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.ut.dp_routing.test_index import SIZE, rules
from vllm_ascend.dp_routing.index import CacheIndex
from vllm_ascend.dp_routing.names import placed_name
from vllm_ascend.dp_routing.news import CacheNews, CacheRules, pack_names
from vllm_ascend.kv_events.layout import GroupRule

_NUM_RANKS = 3
_MOST = 12 * SIZE + 3  # tokens of a prompt
_SHARED = list(range(101, 106))
_PROMPTS = [_SHARED + list(range(first, first + 7)) for first in (201, 301)]
Unit = tuple[int, int]
"""A group's index in the events, and a name."""


def units_of(rule: GroupRule, group: int, num_groups: int) -> list[Unit]:
    """Return all that a rank can ever tell of a group."""
    units = []
    for prompt in _PROMPTS:
        ends = range(rule.unit_tokens, len(prompt) * SIZE + 1, rule.unit_tokens)
        units += [(group, name_of(prompt, end, rule)) for end in ends]
        if rule.is_draft:
            units += [(group + num_groups, name) for name in prompt[1:]]
    return list(dict.fromkeys(units))


def name_of(prompt: list[int], end: int, rule: GroupRule) -> int:
    """Return what a unit is called that ends there."""
    granule, inside = divmod(end, SIZE)
    if inside:
        return placed_name(prompt[granule], inside // rule.unit_tokens)
    return prompt[granule - 1]


def has_prefix(held: set[Unit], told: CacheRules, prompt: list[int], end: int) -> bool:
    """Whether a rank holds all granules of ``[0, end)``, and what its drafts must know behind."""
    for group, rule in enumerate(told.groups):
        for granule in range(end // SIZE if rule.rule == "prefix" else 0):
            if (group, prompt[granule]) not in held:
                return False
            behind = prompt[granule + 1 : granule + 2]
            if rule.is_draft and not any((group + len(told.groups), n) in held for n in behind):
                return False
    return True


def has_tails(held: set[Unit], told: CacheRules, prompt: list[int], end: int) -> bool:
    """Whether it holds every unit with one of the last tokens of ``[0, end)`` that ends there."""
    for group, rule in enumerate(told.groups):
        size = rule.unit_tokens
        if rule.rule != "tail":
            continue
        for unit_end in range(size, end + 1, size):
            if unit_end <= end - rule.tail_tokens:
                continue
            if (group, name_of(prompt, unit_end, rule)) not in held:
                return False
            if rule.is_draft and unit_end % SIZE == 0:
                behind = prompt[unit_end // SIZE : unit_end // SIZE + 1]
                if not any((group + len(told.groups), name) in held for name in behind):
                    return False
    return True


def hit_of(held: set[Unit], told: CacheRules, prompt: list[int], num_tokens: int) -> int:
    """Try every end there is."""
    step, most = told.engine.alignment, min(num_tokens - 1, len(prompt) * SIZE)
    ends = range(most // step * step, 0, -step)
    found = (
        end
        for end in ends
        if has_prefix(held, told, prompt, end) and has_tails(held, told, prompt, end)
    )
    return next(found, 0)


@dataclass
class ModelRank:
    """What a rank holds, and what the front end can know of it.

    Attributes:
        is_known: It has told everything, and no gap was noticed since.
        is_followed: No message was lost since, noticed or not.
        last: The last message that arrived.
    """

    held: set[Unit] = field(default_factory=set)
    start: int = 1
    number: int = 0
    is_known: bool = False
    is_followed: bool = False
    last: CacheNews | None = None


@st.composite
def layouts(draw) -> CacheRules:
    flag = st.booleans()
    groups = [
        GroupRule("prefix", SIZE, is_draft=draw(flag)) for _ in range(draw(st.integers(1, 2)))
    ]
    for _ in range(draw(st.integers(0, 2))):
        unit = draw(st.sampled_from([SIZE // 2, SIZE, 2 * SIZE]))
        tail = draw(st.integers(1, 3 * SIZE))
        groups.append(GroupRule("tail", unit, tail_tokens=tail, is_draft=draw(flag)))
    alignment = SIZE * draw(st.integers(1, 2))
    return rules(*groups, alignment=alignment)


_holes = st.sets(st.integers(0, 200), max_size=6)
_steps = st.lists(
    st.tuples(
        st.integers(0, _NUM_RANKS - 1),
        st.sampled_from(["all", "store", "remove", "remove", "lose", "repeat", "restart"]),
        _holes,
    ),
    min_size=4,
    max_size=14,
)


class Front:
    """Ranks that tell, an index that hears, and the reference that sees both."""

    def __init__(self, told: CacheRules) -> None:
        self.told, self.index = told, CacheIndex(_NUM_RANKS)
        self.ranks = [ModelRank() for _ in range(_NUM_RANKS)]
        num_groups = len(told.groups)
        self.units = [
            unit
            for group, rule in enumerate(told.groups)
            for unit in units_of(rule, group, num_groups)
        ]

    def step(self, number: int, action: str, picked: set[int]) -> None:
        rank = self.ranks[number]
        some = {self.units[i % len(self.units)] for i in picked}
        if action == "repeat":
            if rank.last is not None:
                self.index.apply(number, rank.last)
            return
        rank.number += 1
        if action in ("all", "restart"):
            if action == "restart":
                rank.start, rank.number = rank.start + 1, 1
            rank.held = set(self.units) - some
            rank.is_known = rank.is_followed = True
            self._tell(number, rank.held, set(), self.told)
        elif action == "lose":
            rank.held -= some
            rank.is_followed = False
        else:
            stored, removed = (some, set()) if action == "store" else (set(), some)
            rank.held = (rank.held | stored) - removed
            rank.is_known = rank.is_known and rank.is_followed
            self._tell(number, stored, removed)

    def _tell(
        self,
        number: int,
        stored: set[Unit],
        removed: set[Unit],
        told: CacheRules | None = None,
    ) -> None:
        def packed(units: set[Unit], group: int) -> bytes:
            return pack_names(name for of, name in units if of == group)

        rank, groups = self.ranks[number], {group for group, _ in stored | removed}
        changes = tuple((group, packed(stored, group), packed(removed, group)) for group in groups)
        rank.last = CacheNews(rank.start, rank.number, changes, told)
        self.index.apply(number, rank.last)


@settings(max_examples=300)
@given(layouts(), _steps, st.just(_MOST) | st.integers(1, _MOST))
def test_every_rank_has_the_hit_that_brute_force_finds(told, steps, num_tokens):
    """Layouts with drafts and small units; messages that are lost or said twice."""
    front = Front(told)
    for step in steps:
        front.step(*step)
    for prompt in _PROMPTS:
        found = front.index.look_up(prompt, num_tokens)
        for number, rank in enumerate(front.ranks):
            assert front.index.is_known(number) == rank.is_known
            if not rank.is_known:
                assert found[number] == (0, 0)
            elif rank.is_followed:
                expected = hit_of(rank.held, told, prompt, num_tokens)
                assert found[number].hit == expected
                event("hit" if expected else "miss")
