# SPDX-License-Identifier: Apache-2.0
"""The cache's memory of one request between vLLM's calls.

What a request enters, and who may read it when. Step n is the one that computes it::

    state    from                          may be shared  may be copied  undone when
    noted    n is scheduled, and its load  no             no             the load fails, or n
             is not confirmed                                            will not run
    waiting  n is scheduled                no             no             n will not run
    entered  n is scheduled                yes            no             n will not run
    settled  n + 1 starts                  yes            yes            evicted

Rows of full and sliding attention are *entered* at once, as in vLLM: a request in the same step may
read them. Compressor state and granules of unfinished blocks are *waiting* first: a kernel reads
state while others write it, and a copy is made before the step computes anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from vllm.v1.core.kv_cache_utils import BlockHash, BlockHashWithGroupId, KVCacheBlock
from vllm.v1.request import Request

from vllm_ascend.core.layout.groups import Group
from vllm_ascend.core.policy.boundaries import PromptBoundaries, align_down
from vllm_ascend.core.policy.ranks import Rank
from vllm_ascend.core.policy.units import Granule, GroupId, Ordinal

_NEVER = 1 << 62


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


class EnteredBlocks(NamedTuple):
    """Blocks of a request that are in the index, by ordinal."""

    group: Group
    ordinals: Sequence[int]


class WaitingTails(NamedTuple):
    """Blocks of tails of a request that are to be entered with a rank, by ordinal."""

    group: Group
    ordinals: Sequence[int]
    rank: Rank


class WaitingGranules(NamedTuple):
    """Consecutive granules of a request that are to be entered, and the blocks that hold them.

    Attributes:
        blocks: All that hold any of them.
        first: The first granule's place among all of the request.
        granules: All of them.
        per_block: Granules that a block holds.
    """

    group: Group
    blocks: Sequence[KVCacheBlock]
    first: int
    granules: Sequence[BlockHash]
    per_block: int

    def by_block(self) -> Iterator[tuple[KVCacheBlock, Sequence[BlockHash]]]:
        """Yield each block with those of its granules that are to be entered.

        A hit at a block's end shares it: its last granule needs no entry.
        """
        start = self.first % self.per_block
        for place, block in enumerate(self.blocks):
            first = place * self.per_block - start
            granules = self.granules[max(first, 0) : first + self.per_block - 1]
            if granules:
                yield block, granules


@dataclass(slots=True, eq=False)
class BlockCopy:
    """A copy that a request was given of a block that its hit ends inside.

    Attributes:
        source: The block to copy. It is referenced until nothing can overwrite it before the copy
            is made; ``None`` from then on.
        private: The copy.
        num_tokens: The hit, in tokens.
        supersedes: Nobody needs more of the source than the copy takes.
        is_told: A step has been told to make the copy.
    """

    source: KVCacheBlock | None
    private: KVCacheBlock
    num_tokens: int
    supersedes: bool = False
    is_told: bool = False


@dataclass(slots=True, eq=False)
class RequestRecord:
    """Progress of one request. Everything counts tokens.

    Attributes:
        request: The request itself: its prompt may still grow (streaming input). ``None`` until
            somebody has named it.
        junction: A boundary at which this request was seen to leave a cached prefix, 0 if none.
        prompt: What its prompt singled out when it was asked last.
        rank: The rank of the tails that it keeps.
        num_matched_tokens: How far its last look-up found the rows of full and compressed groups.
        num_hit_tokens: What its last look-up found, ``None`` if it never looked.
        missed_junction: That look-up found no tail where the request leaves the cached prefix.
        capacity: All groups have blocks for so many tokens; 0 where nobody can tell.
        next_free: No window leaves a block behind before so many tokens are computed.
        next_cache: Nothing can be entered before so many tokens are scheduled.
        passed: Boundaries up to here have been dealt with.
        loaded: [start, end) of the external tokens. Of the boundaries in it the tail of the end
            alone was loaded, whatever blocks the window there has.
        cached: Tokens that blocks were last entered for.
        granules: Group id -> granules entered or waiting.
        kept: Tails that it keeps, or was lent, to be refreshed when it ends; of very many a part.
        end_of_kept: Its kept tails need the rows before this token once it has ended; rows
            behind it serve marginal tails alone. 0: there are none, or nothing is marginal.
        rolling: Tails at which the next turn could resume if the request ended now.
        freed: Group id -> ordinal up to which windows have left blocks behind.
        first_step: The step that first computed, copied or loaded something for it.
        is_loading: A connector brings it tokens, and the load is not confirmed: nothing is entered.
        loading_block_ids: The blocks that it held when the load started, until it is confirmed.
        num_noted_tokens: Tokens to enter blocks for once the load is confirmed.
        entered: What it has entered in the step being scheduled.
        waiting: What is to be entered when the next step starts.
        copies: The copies that it was given.
        is_resumed: It was preempted before.
        stale_tokens: Tokens whose draft rows were computed from a following token that was dropped
            since (streaming input). Nobody else may read these rows.
    """

    request: Request | None = None
    junction: int = 0
    prompt: PromptBoundaries | None = None
    rank: Rank = Rank.KEPT
    num_matched_tokens: int = 0
    num_hit_tokens: int | None = None
    missed_junction: bool = False
    capacity: int = 0
    next_free: int = 0
    next_cache: int = 0
    passed: int = 0
    loaded: tuple[int, int] = (0, 0)
    cached: int = 0
    granules: dict[GroupId, Granule] = field(default_factory=dict)
    kept: list[Tail] = field(default_factory=list)
    end_of_kept: int = 0
    rolling: list[Tail] = field(default_factory=list)
    freed: dict[GroupId, Ordinal] = field(default_factory=dict)
    first_step: int | None = None
    is_loading: bool = False
    loading_block_ids: Set[int] = frozenset()
    num_noted_tokens: int = 0
    entered: list[EnteredBlocks] = field(default_factory=list)
    waiting: list[WaitingTails | WaitingGranules] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    is_resumed: bool = False
    stale_tokens: list[int] = field(default_factory=list)

    @property
    def request_id(self) -> str:
        """The request's id; empty until somebody has named it."""
        return "" if self.request is None else self.request.request_id

    def load_ends(self) -> None:
        """What a connector brought has come."""
        self.is_loading, self.loading_block_ids = False, frozenset()

    def end_before_stale(self, group: Group) -> int:
        """Return where the first block of a group with a stale row starts, in tokens."""
        return align_down(min(self.stale_tokens, default=_NEVER), group.block_tokens)
