# SPDX-License-Identifier: Apache-2.0
"""Copies of whole blocks that a worker makes before a step: the other half of a partial hit."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from vllm.v1.core.kv_cache_utils import KVCacheBlock

from vllm_ascend.core.layout.units import BlockId
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool


class KVCacheBlockCopy(NamedTuple):
    """Copy page ``src_block_id`` to page ``dst_block_id`` in every raw KV cache tensor."""

    src_block_id: BlockId
    dst_block_id: BlockId


class PendingCopy(NamedTuple):
    """A copy whose source is still referenced.

    Attributes:
        supersedes: Nobody needs more of the source than what the copy takes.
    """

    source: KVCacheBlock
    private: KVCacheBlock
    supersedes: bool


class CopyQueue:
    """Copies from the moment they are decided until nothing can overtake them.

    Every source is referenced by its caller when it is queued, and released here. Where one stream
    executes all steps in order, whoever is given the source writes it behind the copy: it is
    released once the step that copies is certain to have been dispatched, or when the request that
    wanted it goes. A KV connector writes blocks beside that stream. With one, sources are held
    until the step's output is back, whatever becomes of the request: its copy may be cached.

    A source that has been superseded goes with marginal tails from then on, if the copy can be hit
    in its stead.
    """

    def __init__(
        self,
        pool: AscendBlockPool,
        *,
        can_replace: Callable[[str, KVCacheBlock, KVCacheBlock], bool],
        until_confirmed: bool = False,
    ) -> None:
        """Queue nothing yet.

        Args:
            can_replace: Whether a request's copy will be hit in its source's stead. Called with
                the request's id, the source and the copy.
            until_confirmed: Hold sources until :meth:`confirm` is told of their step.
        """
        self._pool = pool
        self._can_replace = can_replace
        self._until_confirmed = until_confirmed
        self._queued: defaultdict[str, list[PendingCopy]] = defaultdict(list)
        # By step: what it was told, and the copies that it makes, by request.
        self._dispatched: deque[tuple[list[KVCacheBlockCopy], dict[str, list[PendingCopy]]]] = (
            deque()
        )

    def __len__(self) -> int:
        """Sources that are still referenced."""
        return len(self.sources())

    def queue(
        self,
        request_id: str,
        source: KVCacheBlock,
        private: KVCacheBlock,
        *,
        supersedes: bool = False,
    ) -> None:
        """Ask for a copy in the step being scheduled; ``source`` carries a reference for it."""
        self._queued[request_id].append(PendingCopy(source, private, supersedes))

    def take(self) -> list[KVCacheBlockCopy] | None:
        """Hand the queued copies to the step that has just been scheduled; ``None`` if none."""
        if not self._queued:
            return None
        queued = itertools.chain.from_iterable(self._queued.values())
        told = [KVCacheBlockCopy(c.source.block_id, c.private.block_id) for c in queued]
        self._dispatched.append((told, dict(self._queued)))
        self._queued.clear()
        return told

    def new_step_starts(self) -> None:
        """The steps before have been dispatched: release their sources, if that is enough."""
        if not self._until_confirmed:
            self._release_dispatched(len(self._dispatched))

    def confirm(self, copies: list[KVCacheBlockCopy]) -> None:
        """The step that was told these copies has run, and so have all before it.

        They are what :meth:`take` returned: the list itself, not an equal one.
        """
        for index, (told, _) in enumerate(self._dispatched):
            if told is copies:
                self._release_dispatched(index + 1)
                return

    def forget(self, request_id: str) -> None:
        """A request ends or is preempted: drop its copies that were not handed out yet."""
        if dropped := self._queued.pop(request_id, None):
            self._pool.free_blocks([copy.source for copy in dropped])
        if not self._until_confirmed:
            for _, by_request in self._dispatched:
                self._release(request_id, by_request.pop(request_id, ()))

    def prepare_reset(self) -> None:
        """Release everything if no request holds a block: nobody is left to read the copies."""
        sources = self.sources()
        # -1: the null block is always in use.
        in_use = self._pool.num_gpu_blocks - 1 - self._pool.get_num_free_blocks()
        is_alone = len({block.block_id for block in sources}) == in_use
        if is_alone and sum({b.block_id: b.ref_cnt for b in sources}.values()) == len(sources):
            self._release_dispatched(len(self._dispatched))

    def sources(self) -> list[KVCacheBlock]:
        """Return every block referenced for a copy, once per reference."""
        steps = [self._queued, *(by_request for _, by_request in self._dispatched)]
        return [copy.source for step in steps for copies in step.values() for copy in copies]

    def _release_dispatched(self, num_steps: int) -> None:
        for _ in range(num_steps):
            for request_id, copies in self._dispatched.popleft()[1].items():
                self._release(request_id, copies)

    def _release(self, request_id: str, copies: Sequence[PendingCopy]) -> None:
        """Drop the references of sources whose copies are certain to be made."""
        for copy in copies:
            if copy.supersedes and self._can_replace(request_id, copy.source, copy.private):
                self._pool.let_go([copy.source])
        self._pool.free_blocks([copy.source for copy in copies])
