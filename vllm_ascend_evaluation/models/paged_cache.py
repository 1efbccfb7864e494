# SPDX-License-Identifier: Apache-2.0
"""Paged KV caches as vLLM's engine sees them: layers with a spec, a backend and metadata.

One backend serves every kind of cache that DeepSeek-V4 has, because all of them are rows in pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_interface import KVCacheSpec

from vllm_ascend.core.layout.specs import AscendMLATokenSpec, compress_ratio, rows_per_block

_DIMS_WITH_HEADS = 4  # [num_blocks, heads, rows per block, row size]


@dataclass(frozen=True)
class RequestSlice:
    """The tokens of one request in this step.

    Attributes:
        tokens: Where they lie in the batch.
        start: Position of the first of them: all before it were computed in earlier steps.
        end: Position behind the last of them.
    """

    tokens: slice
    start: int
    end: int


@dataclass(frozen=True)
class PagedMetadata:
    """What a step reads and writes in one KV cache group.

    Attributes:
        requests: The requests of the batch, in order, those without tokens left out.
        block_tables: ``[num_requests, blocks]``, in the same order.
        slot_mapping: ``[num_tokens]``, the slot of the row that a token writes, negative for none.
    """

    requests: list[RequestSlice]
    block_tables: torch.Tensor
    slot_mapping: torch.Tensor


class PagedMetadataBuilder(AttentionMetadataBuilder[PagedMetadata]):
    """Builds :class:`PagedMetadata`; a batch may mix prefills, chunks of them, and decodes."""

    def __init__(
        self,
        kv_cache_spec: Any,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> PagedMetadata:
        """Return the metadata of a step."""
        starts = common_attn_metadata.query_start_loc_cpu.tolist()
        ends = common_attn_metadata.seq_lens.tolist()
        active = [i for i in range(common_attn_metadata.num_reqs) if starts[i + 1] > starts[i]]
        requests = [
            RequestSlice(
                tokens=slice(starts[i], starts[i + 1]),
                start=ends[i] - (starts[i + 1] - starts[i]),
                end=ends[i],
            )
            for i in active
        ]
        block_tables = common_attn_metadata.block_table_tensor[active].long()
        slots = common_attn_metadata.slot_mapping
        if isinstance(self.kv_cache_spec, AscendMLATokenSpec):
            slots = _closing_slots(self.kv_cache_spec, requests, block_tables, slots)
        return PagedMetadata(requests, block_tables, slots)


def _closing_slots(
    spec: KVCacheSpec,
    requests: Sequence[RequestSlice],
    block_tables: torch.Tensor,
    slots_of_tokens: torch.Tensor,
) -> torch.Tensor:
    """Return the slots of the compressed rows that a step's tokens close, negative for the others.

    Block tables that count tokens have a slot for every token.
    """
    ratio, num_rows = compress_ratio(spec), rows_per_block(spec)
    slots = torch.full_like(slots_of_tokens, -1)
    for request, blocks in zip(requests, block_tables, strict=True):
        positions = torch.arange(request.start, request.end)
        rows = positions // ratio
        of_rows = blocks[rows // num_rows] * num_rows + rows % num_rows
        slots[request.tokens] = torch.where((positions + 1) % ratio == 0, of_rows, -1)
    return slots


class PagedBackend(AttentionBackend):
    """Rows in pages, ``[num_blocks, rows per block, row size]``, in plain torch."""

    supported_dtypes = [torch.float32, torch.bfloat16, torch.float16]

    @staticmethod
    def get_name() -> str:
        """Return the backend's name."""
        return "PAGED_ROWS"

    @staticmethod
    def get_impl_cls() -> Any:
        """Refuse: the model's layers read and write the caches themselves."""
        raise NotImplementedError("DeepSeek-V4's layers read and write their caches themselves")

    @staticmethod
    def get_builder_cls() -> type[PagedMetadataBuilder]:
        """Return the builder of the metadata."""
        return PagedMetadataBuilder

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        """Return the shape of a cache."""
        return (num_blocks, block_size, head_size)


class PagedCache(nn.Module, AttentionLayerBase):
    """One layer's cache of one kind: the rows of all requests, in the pool's pages.

    Args:
        prefix: The layer's name, which the KV cache groups list.
        spec: What a page holds.

    Raises:
        ValueError: A layer of that name exists already.
    """

    def __init__(self, prefix: str, spec: KVCacheSpec) -> None:
        super().__init__()
        layers = get_current_vllm_config().compilation_config.static_forward_context
        if prefix in layers:
            raise ValueError(f"Duplicate layer name: {prefix}")
        layers[prefix] = self
        self.prefix = prefix
        self.spec = spec
        self.kv_cache = torch.tensor([])  # bound by the model runner

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        """Return what a page holds."""
        return self.spec

    def get_attn_backend(self) -> type[AttentionBackend]:
        """Return the one backend."""
        return PagedBackend

    def metadata(self) -> PagedMetadata | None:
        """Return this step's metadata, ``None`` in a run that only measures memory."""
        metadata = get_forward_context().attn_metadata
        return None if metadata is None else metadata[self.prefix]

    @property
    def pages(self) -> torch.Tensor:
        """The cache as ``[num_blocks, rows per block, row size]``, of the one head that it has."""
        has_heads = self.kv_cache.dim() == _DIMS_WITH_HEADS
        return self.kv_cache.squeeze(1) if has_heads else self.kv_cache

    def write(self, rows: torch.Tensor, slots: torch.Tensor) -> None:
        """Store rows.

        Args:
            rows: ``[num_rows, row size]``.
            slots: ``[num_rows]``; rows without a slot (negative), or with one in the null block,
                are dropped, as Ascend's kernels drop them.
        """
        pages = self.pages
        num_rows = pages.shape[1]
        stored = slots >= num_rows
        slots = slots[stored]
        pages[slots // num_rows, slots % num_rows] = rows[stored].to(pages.dtype)

    def keep(self, rows: torch.Tensor, requests: Sequence[RequestSlice]) -> None:
        """Store a row of every token of the step.

        Args:
            rows: ``[num_tokens, row size]``.
            requests: Whose tokens are where, which the slots know already.
        """
        metadata = self.metadata()
        assert metadata is not None
        self.write(rows, metadata.slot_mapping[: len(rows)])

    def read_request(self, index: int, start: int, end: int) -> torch.Tensor:
        """Return rows [start, end) of a request of this step: ``[end - start, row size]``.

        Args:
            index: Which of the metadata's requests.
            start: First row.
            end: Behind the last row.
        """
        metadata = self.metadata()
        assert metadata is not None
        pages = self.pages
        num_rows = pages.shape[1]
        rows = torch.arange(start, end, device=pages.device)
        blocks = metadata.block_tables[index][rows // num_rows]
        return pages[blocks, rows % num_rows]
