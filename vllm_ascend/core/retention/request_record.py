# SPDX-License-Identifier: Apache-2.0
"""What the coordinator remembers of a request between its calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId, KVCacheBlock
from vllm.v1.request import Request

from vllm_ascend.core.eviction.block_classes import BlockClass
from vllm_ascend.core.layout.units import Granule, GroupId, Ordinal
from vllm_ascend.core.pool.tiered_block_pool import Rank


class TailBlock(NamedTuple):
    """A block of a cached tail and the key it had; with another key it holds something else."""

    block: KVCacheBlock
    key: BlockHashWithGroupId
    start_token: int

    @property
    def is_intact(self) -> bool:
        """Whether the block still is what was cached."""
        return self.block._block_hash == self.key


class Tail(NamedTuple):
    """The blocks of all windowed groups that were cached for a boundary."""

    boundary: int
    blocks: tuple[TailBlock, ...]

    @property
    def is_intact(self) -> bool:
        """Whether all its blocks still are what was cached."""
        return all(entry.is_intact for entry in self.blocks)


@dataclass(slots=True)
class RequestRecord:
    """Progress of one request. Everything counts tokens.

    Attributes:
        request: The request itself: its prompt may still grow (streaming input). ``None`` until
            somebody has named it.
        junction: A boundary at which this request was seen to leave a cached prefix, 0 if none.
        rank: Why its tails are kept, and so how long.
        seen: How much of its prompt had come before; 0 where nobody asks.
        found: How much of it was in the cache when it came; 0 where nobody asks.
        rest: Of which class its blocks behind that are.
        matched: How far its last look-up found the rows of full and compressed groups.
        hit: What its last look-up found, ``None`` if it never looked.
        missed_junction: That look-up found no tail where the request leaves the cached prefix.
        capacity: All groups have blocks for so many tokens; 0 where nobody can tell.
        next_free: No window leaves a block behind before so many tokens are computed.
        next_cache: Nothing can be entered before so many tokens are scheduled.
        passed: Boundaries up to here have been dealt with.
        cached: Tokens that blocks were last entered for.
        granules: Group id -> granules entered, or waiting for their step to be dispatched.
        kept: Tails that it keeps, or was lent, to be refreshed when it ends; of very many a part.
        end_of_kept: Before which token the tails that it keeps need rows once it has ended; those
            behind it serve marginal tails alone. 0: there are none, or nothing is marginal.
        rolling: Tails at which the next turn could resume if the request ended now.
        freed: Group id -> ordinal up to which windows have left blocks behind.
    """

    request: Request | None = None
    junction: int = 0
    rank: Rank = Rank.KEPT
    seen: int = 0
    found: int = 0
    rest: BlockClass = BlockClass.NEW
    matched: int = 0
    hit: int | None = None
    missed_junction: bool = False
    capacity: int = 0
    next_free: int = 0
    next_cache: int = 0
    passed: int = 0
    cached: int = 0
    granules: dict[GroupId, Granule] = field(default_factory=dict)
    kept: list[Tail] = field(default_factory=list)
    end_of_kept: int = 0
    rolling: list[Tail] = field(default_factory=list)
    freed: dict[GroupId, Ordinal] = field(default_factory=dict)
