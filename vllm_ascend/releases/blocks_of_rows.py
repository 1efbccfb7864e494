# SPDX-License-Identifier: Apache-2.0
"""Releases whose blocks count rows. It goes with the last of them, as do row_layout and worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_ascend.releases.release import Release, Side

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec, KVCacheTensor
    from vllm.v1.request import Request

_ROOM, _WORKERS = "vllm_ascend.row_layout", "vllm_ascend.worker"


class BlocksOfRows(Release):
    """Blocks count stored rows, nothing is copied, and a tensor is shared by whole layers."""

    counts_rows = True
    step_tokens = "max_num_batched_tokens"
    layout_patches: ClassVar[Mapping[Side, tuple[str, ...]]] = {
        Side.ENGINE: (f"{_ROOM}.patch_kv_cache_utils",),
        Side.ENGINE_OVER_CHECKOUT: (f"{_ROOM}.patch_spec_classes",),
        Side.WORKERS: (f"{_WORKERS}.patch_gpu_model_runner", f"{_WORKERS}.patch_worker_base"),
        Side.CHECKOUT: (f"{_ROOM}.patch_dsa_attention", f"{_ROOM}.patch_model_runner"),
    }

    def manager_of_rows(
        self, spec: KVCacheSpec, max_model_len: int | None, **arguments: Any
    ) -> SingleTypeKVCacheManager:
        from vllm_ascend.row_layout.compress_manager import make_manager

        return make_manager(spec, max_model_len, **arguments)

    def tensors(
        self, pages: Sequence[tuple[int, tuple[str, ...]]], num_blocks: int
    ) -> list[KVCacheTensor]:
        from vllm.v1.kv_cache_interface import KVCacheTensor

        return [
            KVCacheTensor(size=page_bytes * num_blocks, shared_by=list(layers))
            for page_bytes, layers in pages
        ]

    def page_bytes(self, kv_cache_config: KVCacheConfig) -> dict[str, int]:
        num_blocks = kv_cache_config.num_blocks
        return {
            layer: tensor.size // num_blocks
            for tensor in kv_cache_config.kv_cache_tensors
            for layer in tensor.shared_by
        }

    def tokens_of_step(self, told: int, num_in_flight_tokens: int) -> int:
        return told

    def take_computed_blocks(self, manager: SingleTypeKVCacheManager, *hit: Any) -> None:
        manager.allocate_new_computed_blocks(*hit)

    def blocks_to_allocate(self, manager: SingleTypeKVCacheManager, *needs: Any) -> int:
        return manager.get_num_blocks_to_allocate(*needs)

    def enter_all(
        self, manager: SingleTypeKVCacheManager, request: Request, num_tokens: int
    ) -> None:
        manager.cache_blocks(request, num_tokens)

    def found(self, blocks: tuple[list[KVCacheBlock], ...], num_tokens: int) -> tuple:
        return blocks, num_tokens
