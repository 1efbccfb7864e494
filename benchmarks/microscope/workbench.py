# SPDX-License-Identifier: Apache-2.0
"""Schedulers and prompts to measure with: the real scheduler, no model."""

from __future__ import annotations

import numpy as np
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from benchmarks.microscope.sides import Side
from vllm_ascend.dry_run.layouts import dsv4_flash_a3, dsv4_flash_gpu
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler, make_request

CHUNK_TOKENS = 8192
_MAX_MODEL_LEN = 1_100_000
# Holds a million tokens' rows, and of most sides 128K tokens with all that windows leave behind.
_NUM_BLOCKS = 60_000


def build(side: Side, max_num_seqs: int = 1) -> Scheduler:
    """Return a scheduler for DeepSeek-V4-Flash's layout of a side."""
    layout = dsv4_flash_gpu() if side.block_size is None else dsv4_flash_a3(side.block_size)
    options = SchedulerOptions(
        num_blocks=_NUM_BLOCKS,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=CHUNK_TOKENS,
        max_model_len=_MAX_MODEL_LEN,
    )
    return build_scheduler(layout, options)


def random_prompt(num_tokens: int, seed: int) -> list[int]:
    """Return token ids, the same ones for the same seed."""
    return np.random.default_rng(seed).integers(0, 100_000, num_tokens).tolist()


class Passage:
    """Takes prompts of one length through the KV cache manager, chunk by chunk, as schedule() does.

    Attributes:
        num_chunks: Of a prompt.
        request: The one on its way.
    """

    def __init__(self, side: Side, num_tokens: int) -> None:
        self.scheduler = build(side)
        self.manager = self.scheduler.kv_cache_manager
        self.num_chunks = -(-num_tokens // CHUNK_TOKENS)
        self.prompt = random_prompt(num_tokens, seed=0)
        self._num_requests = 0
        self.begin()

    def new_request(self, prompt: list[int]) -> Request:
        """Return a request that nothing knows of yet."""
        self._num_requests += 1
        return make_request(self.scheduler, f"r{self._num_requests}", prompt, 1)

    def begin(self) -> None:
        """Let the next request look up its prompt, in a cache that is empty."""
        self.manager.new_step_starts()
        assert self.manager.reset_prefix_cache()
        self.request = self.new_request(self.prompt)
        # Later releases return a third number.
        self._hit, num_hit_tokens, *_ = self.manager.get_computed_blocks(self.request)
        assert num_hit_tokens == 0
        self._chunk = CHUNK_TOKENS

    def allocate(self) -> None:
        """Allocate the next chunk, in a new step."""
        self.manager.new_step_starts()
        left = self.request.num_tokens - self.request.num_computed_tokens
        self._chunk = min(CHUNK_TOKENS, left)
        given = self.manager.allocate_slots(
            self.request, self._chunk, 0, self._hit, delay_cache_blocks=True
        )
        assert given is not None
        self._hit = None

    def cache(self) -> None:
        """Cache the chunk just allocated."""
        computed = self.request.num_computed_tokens + self._chunk
        self.manager.cache_blocks(self.request, computed)

    def advance(self) -> None:
        """Count the chunk as computed; behind a prompt's last chunk, free it and begin anew."""
        self.request.num_computed_tokens += self._chunk
        if self.request.num_computed_tokens == self.request.num_tokens:
            self.manager.new_step_starts()
            self.free()
            self.begin()

    def serve(self) -> None:
        """Take the whole prompt through; its blocks are held and cached."""
        for _ in range(self.num_chunks):
            self.allocate()
            self.cache()
            self.request.num_computed_tokens += self._chunk
        self.manager.new_step_starts()

    def free(self) -> None:
        """Free the request's blocks."""
        self.manager.free(self.request)

    def key_bytes(self) -> int:
        """Return the size of all keys in the cache's index."""
        pool = self.manager.block_pool
        granules = getattr(pool, "granules", None)
        keys = sum(map(len, pool.cached_block_hash_to_block._cache))
        known = {} if granules is None else granules.known
        return keys + sum(map(len, known.values()))
