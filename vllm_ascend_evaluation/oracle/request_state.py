# SPDX-License-Identifier: Apache-2.0
"""What a worker knows about one request: its tokens, block tables and progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vllm_ascend_evaluation.oracle.digests import PrefixDigests
from vllm_ascend_evaluation.oracle.shadow_memory import Life


class BlockTable:
    """The block ids of one request in one group, growing at the end only.

    `seen` and `draft_seen` remember, per block, the epoch at which its rows were last verified
    for this request, so that a row is compared again only after something wrote to its block.
    """

    def __init__(self, block_ids: Sequence[int]) -> None:
        capacity = max(16, 2 * len(block_ids))
        self._ids: npt.NDArray[np.int64] = np.zeros(capacity, np.int64)
        self.seen: npt.NDArray[np.int64] = np.full(capacity, -1, np.int64)
        self.draft_seen: npt.NDArray[np.int64] = np.full(capacity, -1, np.int64)
        self.block_ids: list[int] = []
        self.extend(block_ids)

    def __len__(self) -> int:
        return len(self.block_ids)

    def extend(self, block_ids: Sequence[int]) -> None:
        """Append block ids."""
        start = len(self.block_ids)
        end = start + len(block_ids)
        while end > len(self._ids):
            fresh = np.full(len(self._ids), -1, np.int64)
            self._ids = np.concatenate([self._ids, fresh])
            self.seen = np.concatenate([self.seen, fresh])
            self.draft_seen = np.concatenate([self.draft_seen, fresh])
        self._ids[start:end] = block_ids
        self.block_ids.extend(block_ids)

    def replace(self, block_ids: Sequence[int]) -> None:
        """Take a whole table that extends this one; it may have null blocks in front."""
        known = len(self.block_ids)
        self._ids[:known] = block_ids[:known]
        self.block_ids = list(block_ids[:known])
        self.extend(block_ids[known:])

    def ids(self, start_block: int, end_block: int) -> npt.NDArray[np.int64]:
        """The block ids in [start_block, end_block), a view."""
        return self._ids[start_block:end_block]


@dataclass
class RequestState:
    """One request, as the worker knows it.

    Attributes:
        digests: the tokens known so far and their digests.
        num_computed_tokens: tokens whose rows are in the cache and right.
        num_rejected_tokens: drafts rejected in the last step; an asynchronous scheduler does
            not know of them yet and counts them as computed.
        draft_token_ids: proposed for the next step.
        pools: it asks for an embedding, so nothing is sampled.
        is_lost: a load for it has failed: what it reads, computes and samples is worthless until
            it starts anew.
        stale_tokens: of a session, whose draft rows were computed from a token that it dropped.
    """

    life: Life
    digests: PrefixDigests
    tables: list[BlockTable]
    num_computed_tokens: int
    num_rejected_tokens: int = 0
    draft_token_ids: list[int] = field(default_factory=list)
    pools: bool = False
    is_lost: bool = False
    stale_tokens: list[int] = field(default_factory=list)

    @property
    def request_id(self) -> str:
        return self.life.request_id


@dataclass
class Span:
    """The tokens [start, end) of a request that one step computes.

    Attributes:
        valid_end: tokens before it are real; those behind it are rejected drafts.
        num_drafts: how many of the tokens were scheduled as drafts.
        num_accepted: how many of those turned out right.
        sampled_token_ids: accepted drafts and the token after them; empty inside a prefill.
    """

    state: RequestState
    start: int
    end: int
    valid_end: int
    num_drafts: int = 0
    num_accepted: int = 0
    sampled_token_ids: list[int] = field(default_factory=list)
