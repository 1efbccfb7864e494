# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/worker/gpu_model_runner.py``: block copies and tables, which every runner inherits."""

from __future__ import annotations

from collections.abc import Callable

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from vllm_ascend.core.layout.kv_cache_groups import has_row_layout
from vllm_ascend.core.layout.specs import group_specs
from vllm_ascend.patch.features import PARTIAL_HITS, ROW_LAYOUT
from vllm_ascend.patch.table import Add, Patch, changes
from vllm_ascend.prefix_cache_config import load_config
from vllm_ascend.worker.block_copies import RawTensors, copy_blocks
from vllm_ascend.worker.block_table import MultiGroupBlockTable
from vllm_ascend.worker.kv_cache_tensors import allocate_pages

_CLASS = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"


@changes(f"{_CLASS}._allocate_kv_cache_tensors", PARTIAL_HITS)
def wrap_allocate_kv_cache_tensors(
    self: GPUModelRunner, kv_cache_config: KVCacheConfig, *, original: Callable
) -> dict[str, RawTensors]:
    """Whole pages can only be copied in the raw tensors; layers get views."""
    specs = group_specs(kv_cache_config)
    if not load_config().changes_caching and not has_row_layout(specs):
        return original(self, kv_cache_config)  # no page is ever copied
    return allocate_pages(self, kv_cache_config, original)


@changes(f"{_CLASS}._update_states", PARTIAL_HITS)
def wrap_update_states(
    self: GPUModelRunner, scheduler_output: SchedulerOutput, *, original: Callable
):
    """A step's first call, before anything is read, written or loaded."""
    # The original zeroes fresh pages, so copies come behind it; nothing has read or written
    # the cache in this step yet, not even a step without tokens.
    result = original(self, scheduler_output)
    if scheduler_output.kv_cache_block_copies:
        copy_blocks(
            self.kv_cache_pages,
            scheduler_output.kv_cache_block_copies,
            pin_memory=self.pin_memory,
        )
        self.num_block_copies += len(scheduler_output.kv_cache_block_copies)
    return result


@changes(f"{_CLASS}.may_reinitialize_input_batch", ROW_LAYOUT)
def wrap_may_reinitialize_input_batch(
    self: GPUModelRunner,
    kv_cache_config: KVCacheConfig,
    kernel_block_sizes: list[int],
    *,
    original: Callable,
) -> None:
    """vLLM's block tables take every token for a row; compressed groups have fewer."""
    original(self, kv_cache_config, kernel_block_sizes)
    if not has_row_layout(group_specs(kv_cache_config)):
        return
    speculative = self.vllm_config.speculative_config
    # No request is in the batch yet: the caches are only being set up.
    self.input_batch.block_table = MultiGroupBlockTable(
        max_num_reqs=self.max_num_reqs,
        max_model_len=max(self.max_model_len, self.max_encoder_len),
        max_num_batched_tokens=self.max_num_tokens,
        pin_memory=self.pin_memory,
        device=self.device,
        block_sizes=[group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups],
        num_speculative_tokens=speculative.num_speculative_tokens if speculative else 0,
        kernel_sizes=[[size] for size in kernel_block_sizes],
        kv_cache_groups=kv_cache_config.kv_cache_groups,
    )


PATCHES: tuple[Patch, ...] = (
    Add(
        target=f"{_CLASS}.kv_cache_pages",
        replacement=(),
        **PARTIAL_HITS,
        why="The raw KV cache tensors as pages, once allocated.",
    ),
    Add(
        target=f"{_CLASS}.num_block_copies",
        replacement=0,
        **PARTIAL_HITS,
        why="Counts copied blocks; a runner without this makes no copies.",
    ),
    wrap_allocate_kv_cache_tensors,
    wrap_update_states,
    wrap_may_reinitialize_input_batch,
)
