# SPDX-License-Identifier: Apache-2.0
"""``models/layer/attention/layer.py`` and ``attention/``: block sizes other than 128."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vllm.v1.kv_cache_interface import KVCacheSpec

from vllm_ascend.core.layout.block_sizes import dsv4_rows_per_block
from vllm_ascend.patch.features import CHECKOUT_BLOCK_SIZE
from vllm_ascend.patch.table import Patch, Wrap, changes
from vllm_ascend.prefix_cache_config import load_config
from vllm_ascend.worker.draft_slots import write_draft_slots
from vllm_ascend.worker.state_window import current_state_window

# Rows of every kind of DeepSeek-V4 block at 128, 64 and 32 rows per compressed block.
KERNEL_BLOCK_SIZES = (8, 32, 128, 64, 16, 4, 2)

_LAYER = "vllm_ascend.models.layer.attention.layer:DSAAttention"
_BACKEND = "vllm_ascend.attention.dsa_v1:AscendDSABackend"
_V1 = "vllm_ascend.attention.dsa_v1:AscendDSAMetadataBuilder"
_CP = "vllm_ascend.attention.context_parallel.dsa_cp:AscendDSACPMetadataBuilder"


def _change(target: str) -> Callable[[Callable], Wrap]:
    return changes(target, CHECKOUT_BLOCK_SIZE)


@_change(f"{_LAYER}.get_kv_cache_spec")
def wrap_get_kv_cache_spec(self, vllm_config, *, original: Callable) -> KVCacheSpec | None:
    """It hard-codes compressed blocks of 128 rows."""
    spec, config = original(self, vllm_config), load_config()
    if spec is None or not config.apply_dsv4_patch:
        return spec
    return replace(spec, block_size=dsv4_rows_per_block(spec.compress_ratio, config))


@_change(f"{_BACKEND}.get_supported_kernel_block_sizes")
def wrap_get_supported_kernel_block_sizes(*, original: Callable) -> list[int]:
    """The runner splits blocks of 64 rows and refuses smaller state blocks; kernels take them."""
    sizes = original()
    # vllm-ascend's own sizes stay in front: others take the first for the preferred one.
    return [*sizes, *(size for size in KERNEL_BLOCK_SIZES if size not in sizes)]


def wrap_build(self, *args: Any, original: Callable, **kwargs: Any):
    """Without a named block size it splits slots by 128."""
    kwargs.setdefault("block_size", self.kv_cache_spec.block_size)
    return original(self, *args, **kwargs)


def wrap_build_for_drafting(
    self, draft_step: int, common_attn_metadata, *args: Any, original: Callable, **kwargs: Any
):
    """From the second draft token on it assumes blocks of 128 tokens."""
    self.block_size = self.kv_cache_spec.block_size
    write_draft_slots(
        common_attn_metadata.slot_mapping,
        common_attn_metadata.block_table_tensor,
        common_attn_metadata.positions,
        block_size=self.block_size,
    )
    return original(self, draft_step, common_attn_metadata, *args, **kwargs)


def wrap_shifting(first_request: Callable[[Any], int]) -> Callable:
    """Let positions count from where the rows of the state tables begin.

    ``first_request`` tells of a builder the first request that its metadata is of.
    """

    def wrap(self, *args: Any, original: Callable, **kwargs: Any):
        """State tables hold only last blocks, so compressors count from the first token there."""
        metadata = original(self, *args, **kwargs)
        window = current_state_window()
        # The builder has just computed them anew, in a buffer of its own.
        if window is not None and metadata.start_pos is not None:
            window.shift(metadata.start_pos, first_request(self))
        return metadata

    return wrap


_shift = wrap_shifting(lambda builder: 0)
_shift_behind_decodes = wrap_shifting(lambda builder: builder.num_decodes)

PATCHES: tuple[Patch, ...] = (
    wrap_get_kv_cache_spec,
    wrap_get_supported_kernel_block_sizes,
    _change(f"{_V1}.build_prefill_metadata")(_shift_behind_decodes),
    _change(f"{_V1}.build_decode_metadata")(_shift),
    _change(f"{_CP}.build_req_metadata")(_shift),
    _change(f"{_V1}.build")(wrap_build),
    _change(f"{_V1}.build_for_drafting")(wrap_build_for_drafting),
    _change(f"{_CP}.build")(wrap_build),
    _change(f"{_CP}.build_for_drafting")(wrap_build_for_drafting),
)
