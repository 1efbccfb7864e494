# SPDX-License-Identifier: Apache-2.0
"""What a data-parallel rank tells the front end of its cache, step by step.

It hears what KV events are made of (see ``kv_event_log``) and keeps only names. What comes and goes
within one step is never told.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

import msgspec
from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.request import Request

from vllm_ascend.core.events.announcement import AnnouncedGroup
from vllm_ascend.core.layout.block_names import BlockNames
from vllm_ascend.dp_routing.names import extend_names, extra_key_of, names_check, placed_name
from vllm_ascend.dp_routing.news import CacheNews, CacheRules, TierRules, pack_names
from vllm_ascend.kv_events.layout import EngineRules, GroupRule


class _Named:
    """Our names of a request's first granules, and vLLM's hash of the last one."""

    def __init__(self) -> None:
        self.names: list[int] = []
        self.last: BlockHash | None = None

    def belong_to(self, hashes: Sequence[BlockHash]) -> bool:
        """Whether these are still the request's: a streaming session may have dropped tokens."""
        end = len(self.names)
        return end <= len(hashes) and (not end or hashes[end - 1] == self.last)


class CacheNewsQueue:
    """News of one rank until they are taken."""

    def __init__(self, hash_tokens: int) -> None:
        self._hash_tokens = hash_tokens
        # Not the seeded generator: ranks that are seeded alike must differ.
        self._start = random.SystemRandom().getrandbits(62)
        self._number = 0
        self._rules: CacheRules | None = None
        self._begins_anew = False
        self._digest_bytes = 0
        # vLLM's hash of a granule -> our name, and how many told units bear it.
        self._granules: dict[BlockHash, list[int]] = {}
        self._named: WeakKeyDictionary[Request, _Named] = WeakKeyDictionary()
        # index in the events -> name -> whether it is cached now, if it was not so when last told
        self._changes: defaultdict[int, dict[int, bool]] = defaultdict(dict)
        # Key of an object in the tier below -> index in the events, name
        self._in_tier: dict[bytes, tuple[int, int]] = {}

    # What is heard, in the words of KV events

    def describe(self, groups: Sequence[AnnouncedGroup], rules: EngineRules) -> None:
        """Hear how the names are to be read. Called once, before anything is stored."""
        self._rules = CacheRules(
            groups=tuple(
                GroupRule(group.rule, group.unit_tokens, group.tail_tokens, group.is_draft)
                for group in groups
            ),
            engine=rules,
            check=names_check(rules.hash_tokens),
        )
        self._begins_anew = True

    def clear(self) -> None:
        """Hear that nothing is cached any more, but in a tier below."""
        self._granules.clear()
        self._changes.clear()
        for index, name in self._in_tier.values():
            self._changes[index][name] = True
        self._begins_anew = True

    def store(
        self,
        index: int,
        request: Request,
        names: Sequence[BlockHash] | BlockNames,
        ordinals: Sequence[int],
        unit_tokens: int,
    ) -> None:
        """Hear of units of a request that are cached now; see ``KVEventQueue.store``."""
        hash_tokens, changes = self._hash_tokens, self._changes[index]
        granules, hashes, ours = self._granules, request.block_hashes, None
        for ordinal in ordinals:
            granule, inside = divmod((ordinal + 1) * unit_tokens, hash_tokens)
            granule -= not inside
            known = granules.get(hashes[granule])
            if known is None:  # the first group that tells of it
                if ours is None:
                    last_end = (ordinals[-1] + 1) * unit_tokens
                    ours = self._names_of(request, -(-last_end // hash_tokens))
                known = granules[hashes[granule]] = [ours[granule], 0]
            known[1] += 1
            name = placed_name(known[0], inside // unit_tokens) if inside else known[0]
            _note(changes, name, is_cached=True)

    def remove(self, index: int, names: Sequence[BlockHash]) -> None:
        """Hear of units that are cached no longer; see ``KVEventQueue.remove``."""
        changes, digest_bytes = self._changes[index], self._digest_bytes
        for name in names:
            granule, place = BlockHash(name[:digest_bytes]), name[digest_bytes:]
            known = self._granules[granule]
            known[1] -= 1
            if not known[1]:
                del self._granules[granule]
            ours = placed_name(known[0], int.from_bytes(place, "big")) if place else known[0]
            _note(changes, ours, is_cached=False)

    # What is heard of a tier below

    def describe_tier(self, tier: TierRules) -> None:
        """Hear how the names of a tier are to be read. Called once, before the first step."""
        assert self._rules is not None, "groups are described first"
        self._rules = msgspec.structs.replace(self._rules, tier=tier)

    def store_in_tier(
        self, key: bytes, index: int, request: Request, granule: int, name: bytes
    ) -> None:
        """Hear that an object can be loaded from now on.

        Args:
            key: The object.
            index: What it is; see ``dp_routing.news``.
            request: Whose it was.
            granule: The ordinal of the request's granule that names it.
            name: vLLM's hash of that granule when the object was made.
        """
        hashes = request.block_hashes
        # A streaming session may have dropped the granule since.
        if key in self._in_tier or granule >= len(hashes) or hashes[granule] != name:
            return
        ours = self._names_of(request, granule + 1)[granule]
        self._in_tier[key] = index, ours
        _note(self._changes[index], ours, is_cached=True)

    def drop_from_tier(self, keys: Iterable[bytes]) -> None:
        """Hear that objects cannot be loaded any longer."""
        for key in keys:
            if (told := self._in_tier.pop(key, None)) is not None:
                _note(self._changes[told[0]], told[1], is_cached=False)

    def _names_of(self, request: Request, end: int) -> list[int]:
        """Return our names of a request's first granules, ``end`` of them at least."""
        hashes, known_names = request.block_hashes, self._named.get(request)
        if known_names is None or not known_names.belong_to(hashes):
            known_names = self._named[request] = _Named()
        names = known_names.names
        if len(names) < end:
            self._digest_bytes = len(hashes[0])
            # The granules of a hit are known from who entered them.
            for i in range(len(names), end):
                known = self._granules.get(hashes[i])
                if known is None:
                    break
                names.append(known[0])
            extra_key = extra_key_of(request, self._hash_tokens)
            extend_names(names, request.all_token_ids, self._hash_tokens, end, extra_key)
            known_names.last = hashes[end - 1]
        return names

    # What is told

    def take(self) -> CacheNews | None:
        """Return what is new since the last call; ``None`` if nothing is."""
        if not self._changes and not self._begins_anew:  # so are most steps of decodes
            return None
        changes = tuple(
            (index, *_packed(changed)) for index, changed in self._changes.items() if changed
        )
        if not changes and not self._begins_anew:
            self._changes.clear()
            return None
        rules = self._rules if self._begins_anew else None
        self._changes.clear()
        self._begins_anew = False
        self._number += 1
        return CacheNews(self._start, self._number, changes, rules)

    def everything(self, cached: Iterable[tuple[int, BlockHash]]) -> CacheNews:
        """Return one message that tells all, for a front end that has missed some.

        It bears the number of the last message that was taken.

        Args:
            cached: Index and name of all units that are cached. All that is new has been taken.
        """
        assert not any(self._changes.values()), "what is new is told to all first"
        names: defaultdict[int, list[int]] = defaultdict(list)
        for index, name in cached:
            granule, place = BlockHash(name[: self._digest_bytes]), name[self._digest_bytes :]
            ours = self._granules[granule][0]
            names[index].append(placed_name(ours, int.from_bytes(place, "big")) if place else ours)
        for index, ours in self._in_tier.values():
            names[index].append(ours)
        changes = tuple((index, pack_names(told), b"") for index, told in names.items())
        return CacheNews(self._start, self._number, changes, self._rules)


def _note(changes: dict[int, bool], name: int, *, is_cached: bool) -> None:
    """Note a change, or that it undoes one that was not told yet."""
    if name in changes:
        del changes[name]
    else:
        changes[name] = is_cached


def _packed(changes: dict[int, bool]) -> tuple[bytes, bytes]:
    stored = pack_names(name for name, is_cached in changes.items() if is_cached)
    return stored, pack_names(name for name, is_cached in changes.items() if not is_cached)
