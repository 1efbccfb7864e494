# SPDX-License-Identifier: Apache-2.0
"""An engine's hits told as one group of equal blocks, for indexes that look for the longest chain.

Such an index finds the first n blocks of a prompt wherever it finds its first n + 1, so it cannot
say that a hit may end behind block n + 1 and not behind block n. What can be published is the least
such promise that is never too short, or the greatest that is never too long; where every boundary
has its tails, they are the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from vllm.distributed.kv_events import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
)
from vllm.logger import init_logger

from vllm_ascend.kv_events.bound import Bound
from vllm_ascend.kv_events.hit_tree import Granule, HitTree

_logger = init_logger("vllm.plugins.vllm_ascend_backport")
_GROUP = 0


class BoundEvents:
    """Turns an engine's events into those of one group that holds what would be hit."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._has_said_size = False
        self.forget()

    @property
    def block_size(self) -> int:
        """Tokens per published block: hits are multiples of it. 0 while it is not known."""
        return self._tree.alignment

    def forget(self) -> None:
        """Start over with nothing cached, until the engine describes its groups again."""
        self._tree = HitTree()
        self._published: set[Hashable] = set()

    def of(self, events: Iterable[Any]) -> list[KVCacheEvent]:
        """Return the events that lead from what was published to what holds after these."""
        events = list(events)
        self._tree.apply(events)
        told: list[KVCacheEvent] = []
        if any(getattr(event, "block_hashes", None) is None for event in events):
            self._published.clear()
            told.append(AllBlocksCleared())
        if self.block_size and not self._has_said_size:
            self._has_said_size = True
            _logger.info("KV events: the router's block size is %d tokens", self.block_size)
        gone: list[Granule] = []
        new: list[Granule] = []
        for granule in self._tree.settle():
            if granule.end % self.block_size:
                continue
            is_published = granule.name in self._published
            if is_published != self._is_promised(granule):
                (gone if is_published else new).append(granule)
        if gone:
            gone.sort(key=lambda granule: -granule.end)
            names = [granule.name for granule in gone]
            self._published.difference_update(names)
            told.append(BlockRemoved(names, medium=MEDIUM_GPU, group_idx=_GROUP))
        self._published.update(granule.name for granule in new)
        return told + self._stored(sorted(new, key=lambda granule: granule.end))

    def _is_promised(self, granule: Granule) -> bool:
        if self._bound is Bound.UPPER:
            return granule.num_longer > 0
        return granule.hits_everywhere

    def _stored(self, granules: list[Granule]) -> list[BlockStored]:
        """Return events of new blocks, shorter prefixes first, one for those in a row."""
        ending_with: dict[Hashable, BlockStored] = {}
        told = []
        for granule in granules:
            block = self._tree.up_to(granule, self.block_size)
            parent = block[0].parent
            event = ending_with.pop(parent, None)
            if event is None:
                event = BlockStored(
                    block_hashes=[],
                    parent_block_hash=parent,
                    token_ids=[],
                    block_size=self.block_size,
                    lora_id=granule.lora[0],
                    medium=MEDIUM_GPU,
                    lora_name=granule.lora[1],
                    extra_keys=[],
                    group_idx=_GROUP,
                )
                told.append(event)
            event.block_hashes.append(granule.name)
            event.token_ids += [token for part in block for token in part.token_ids]
            event.extra_keys.append(_extra_keys(block))
            ending_with[granule.name] = event
        return told


def _extra_keys(block: list[Granule]) -> tuple[Any, ...] | None:
    """Return what the hashes of a block's granules cover besides tokens, each thing once."""
    found: dict[Any, None] = {}
    start = block[0].end - len(block[0].token_ids)
    for part in block:
        for key in part.extra_keys or ():
            if isinstance(key, tuple):  # a multimodal item, and where it begins
                identifier, offset = key
                key = (identifier, offset + part.end - len(part.token_ids) - start)
            found[key] = None
    return tuple(found) or None
