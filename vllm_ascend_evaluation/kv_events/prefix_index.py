# SPDX-License-Identifier: Apache-2.0
"""An index of one engine's prefix cache, built from its KV events and nothing else.

The reference for who writes a router: it imports only the standard library, and gives for any
prompt the number of tokens that the engine would take from its cache if the prompt were the next
one it schedules. docs/kv-events.md tells the conventions that it rests on.

Example::

    index = PrefixIndex()
    for batch in batches:                    # of one engine and one data parallel rank, in order
        index.apply(batch.events)
    index.longest_hit(prompt_token_ids)      # 13952
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import lcm
from typing import Any

from vllm_ascend.kv_events.layout import EngineRules, EventReader, GroupRule, freeze, placed_name
from vllm_ascend_evaluation.kv_events.probe import TOKEN_BYTES, Content, Image, Probe, pack_tokens


class _Names:
    """The names that one group announced, by what they stand for and the other way round."""

    def __init__(self) -> None:
        self.by_content: dict[Content, Hashable] = {}
        # name -> announced copies (vLLM itself announces every one), and content
        self._known: dict[Hashable, list[Any]] = {}

    def __contains__(self, name: Hashable) -> bool:
        return name in self._known

    def add(self, name: Hashable, content: Content) -> None:
        known = self._known.get(name)
        if known is None:
            self._known[name] = [1, content]
            self.by_content[content] = name
        else:
            known[0] += 1

    def remove(self, name: Hashable) -> None:
        known = self._known.get(name)
        if known is None:
            return
        known[0] -= 1
        if not known[0]:
            del self._known[name]
            # Units inside a granule are told apart by what is behind them, too.
            if self.by_content.get(known[1]) == name:
                del self.by_content[known[1]]


class PrefixIndex(EventReader):
    """What one engine (one data parallel rank of it) has cached."""

    def __init__(self, *, described: bool = True) -> None:
        """Start with an empty cache.

        Args:
            described: The engine describes its groups, as it does with any of this package's
                switches on; until it has, nothing is a hit. ``False``: an engine of plain vLLM
                whose groups are all full attention.
        """
        super().__init__()
        self._described = described
        self._names: dict[int, _Names] = {}

    @property
    def is_ready(self) -> bool:
        """Whether it is known how the engine's events are to be read."""
        return not self._described or super().is_ready

    # Events

    def _stored(self, group: int, event: Any) -> None:
        size = event.block_size
        if not self._described:
            self._rules.setdefault(group, GroupRule("prefix", size))
        names = self._names.setdefault(group, _Names())
        tokens, unit_bytes = pack_tokens(event.token_ids), size * TOKEN_BYTES
        parent = event.parent_block_hash
        for i, name in enumerate(event.block_hashes):
            extra_keys = freeze(event.extra_keys[i]) if event.extra_keys else None
            unit = tokens[i * unit_bytes : (i + 1) * unit_bytes]
            names.add(name, Content(parent, unit, extra_keys))
            parent = name

    def _removed(self, group: int, names: Sequence[Hashable]) -> None:
        known = self._names.setdefault(group, _Names())
        for name in names:
            known.remove(name)

    def _cleared(self) -> None:
        self._names.clear()

    # Look-up

    def longest_hit(
        self,
        token_ids: Sequence[int],
        *,
        lora_name: str | None = None,
        cache_salt: str | None = None,
        images: Sequence[Image] = (),
    ) -> int:
        """Return how many tokens of a prompt the engine would take from its cache.

        Args:
            token_ids: The whole prompt. Its last token is always computed.
            lora_name: The adapter's name.
            cache_salt: The request's salt.
            images: Its multimodal items, in order, as vLLM places and identifies them.

        Returns:
            A multiple of the engine's alignment.
        """
        engine = self._engine_rules()
        if not self.is_ready or engine is None:
            return 0
        look_up = _LookUp(
            self._names, self._rules, engine, Probe(token_ids, lora_name, cache_salt, images)
        )
        limit = look_up.prefix_match(len(token_ids) - 1)
        return look_up.last_boundary(limit, engine.alignment)

    def _engine_rules(self) -> EngineRules | None:
        if self._described or not self._rules:
            return self._engine
        size = lcm(*(rule.unit_tokens for rule in self._rules.values()))
        return EngineRules(len(self._rules), size, size)


class _LookUp:
    """One prompt's look-up.

    ``_hash_at`` is what the prompt's tokens up to some position are called, as far as the groups
    that hold whole prefixes tell; an engine's hashes chain, so it names all of them.
    """

    def __init__(
        self,
        names: dict[int, _Names],
        rules: dict[int, GroupRule],
        engine: EngineRules,
        probe: Probe,
    ) -> None:
        self._names = names
        self._rules = rules
        self._engine = engine
        self._probe = probe
        self._hash_at: dict[int, Hashable] = {0: None}

    def prefix_match(self, limit: int) -> int:
        """Return how many tokens, up to ``limit``, all groups of rule ``prefix`` hold."""
        for group, rule in self._rules.items():
            if rule.rule == "prefix":
                limit = self._match(group, rule, limit)
            elif rule.rule != "tail":
                return 0
        return limit

    def _match(self, group: int, rule: GroupRule, limit: int) -> int:
        end = 0
        while end + rule.unit_tokens <= limit:
            start, end = end, end + rule.unit_tokens
            name = self._find(group, start, end)
            if name is None:
                return start
            self._hash_at[end] = name
            if rule.is_draft and not self._is_followed(group, end):
                return start
        return end

    def last_boundary(self, limit: int, step: int) -> int:
        """Return the largest multiple of ``step`` up to ``limit`` where every tail is cached."""
        tails = [(group, rule) for group, rule in self._rules.items() if rule.rule == "tail"]
        boundary = limit // step * step
        while boundary > 0:
            bound = min((self._tail_bound(*tail, boundary) for tail in tails), default=boundary)
            if bound == boundary:
                return boundary
            boundary = bound // step * step
        return 0

    def _tail_bound(self, group: int, rule: GroupRule, boundary: int) -> int:
        """Return ``boundary`` if its tail is cached, else a bound of where one can be."""
        size = rule.unit_tokens
        first = max(boundary - rule.tail_tokens, 0) // size
        for start in range(first * size, boundary // size * size, size):
            if not self._holds(group, rule, start, start + size):
                return start
        return boundary

    def _holds(self, group: int, rule: GroupRule, start: int, end: int) -> bool:
        names = self._names.get(group)
        if names is None:
            return False
        inside = end % self._engine.hash_tokens
        if inside:
            # It is called by the hash of the granule around it, and its place there.
            granule_end = end - inside + self._engine.hash_tokens
            around = self._hash_at.get(granule_end)
            return around is not None and placed_name(around, inside // rule.unit_tokens) in names
        if end not in self._hash_at and (name := self._find(group, start, end)) is not None:
            self._hash_at[end] = name
        if rule.is_draft:
            return self._is_followed(group, end)
        return end in self._hash_at and self._hash_at[end] in names

    def _is_followed(self, group: int, end: int) -> bool:
        """Whether a cached block that ends here was followed by the prompt's next granule."""
        behind = end + self._engine.hash_tokens
        announced = group + self._engine.num_groups
        return behind <= self._probe.num_tokens and self._find(announced, end, behind) is not None

    def _find(self, group: int, start: int, end: int) -> Hashable | None:
        """Return what a group calls the prompt's tokens ``[start, end)``, if it holds them."""
        names = self._names.get(group)
        if names is None or start not in self._hash_at:
            return None
        return names.by_content.get(self._probe.content(self._hash_at[start], start, end))
