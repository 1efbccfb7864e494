# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4's attention over paged caches: a sliding window and, by layer, C4 or C128 rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
    DeepseekV4Attention,
    apply_rotary_pos_emb,
)
from vllm.config import get_current_vllm_config
from vllm.v1.kv_cache_interface import KVCacheSpec

from vllm_ascend.core.layout.dsv4_specs import Dsv4Specs
from vllm_ascend.core.layout.specs import carries_ring
from vllm_ascend_evaluation.models.compressor import PagedCompressor
from vllm_ascend_evaluation.models.indexer import PagedIndexer
from vllm_ascend_evaluation.models.paged_cache import PagedCache, RequestSlice
from vllm_ascend_evaluation.models.ring_cache import RingCache

# Queries that are attended at once: bounds the memory of scores, not the result.
_TILE_TOKENS = 256


@dataclass(frozen=True)
class _StepTokens:
    """What attention needs of a step's tokens, all requests in a row.

    Attributes:
        hidden_states: ``[num_tokens, hidden size]``.
        latent: ``[num_tokens, low rank]``.
        queries: ``[num_tokens, heads, head size]``.
    """

    hidden_states: torch.Tensor
    latent: torch.Tensor
    queries: torch.Tensor

    def cut(self, tokens: slice) -> _StepTokens:
        return _StepTokens(self.hidden_states[tokens], self.latent[tokens], self.queries[tokens])


class PagedAttention(DeepseekV4Attention):
    """Hugging Face's projections and norms around attention that reads the pool's pages.

    Args:
        config: The model's.
        layer_idx: Which layer.
        specs: What the layer's caches hold.
        prefix: What their names begin with.
    """

    def __init__(
        self, config: DeepseekV4Config, layer_idx: int, specs: Dsv4Specs, *, prefix: str
    ) -> None:
        super().__init__(config, layer_idx)
        self.swa_cache = PagedCache(f"{prefix}.swa_cache", specs.window)
        self.paged_compressor: PagedCompressor | None = None
        self.paged_indexer: PagedIndexer | None = None
        if self.compressor is None:
            return
        ratio = self.compressor.compress_rate
        self.paged_compressor = PagedCompressor(
            self.compressor,
            _state_cache(f"{prefix}.compressor.state_cache", specs.state[ratio], specs),
            PagedCache(f"{prefix}.mla", specs.mla[ratio]),
        )
        if hasattr(self.compressor, "indexer"):
            self.paged_indexer = PagedIndexer(
                self.compressor.indexer,
                _state_cache(
                    f"{prefix}.indexer.compressor.state_cache", specs.indexer_state, specs
                ),
                PagedCache(f"{prefix}.indexer.k_cache", specs.indexer),
            )

    def ring_caches(self) -> list[RingCache]:
        """Return where the layer's compressors keep their state, if that is in rings."""
        compressors = [c for c in (self.paged_compressor, self.paged_indexer) if c is not None]
        caches = [compressor.state_cache for compressor in compressors]
        return [cache for cache in caches if isinstance(cache, RingCache)]

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: dict[str, tuple[torch.Tensor, torch.Tensor]],
        **_: object,
    ) -> tuple[torch.Tensor, None]:
        """Attend, and write what the step's tokens leave in the caches.

        Args:
            hidden_states: ``[1, num_tokens, hidden size]``: all requests of the step in a row.
            position_embeddings: Rope name -> cosines and sines, ``[1, num_tokens, rope size]``.

        Returns:
            ``[1, num_tokens, hidden size]``, and no weights.
        """
        num_tokens = hidden_states.shape[1]
        cos, sin = position_embeddings[self.rope_layer_type]
        latent = self.q_a_norm(self.q_a_proj(hidden_states))
        queries = self.q_b_norm(self.q_b_proj(latent).view(1, num_tokens, -1, self.head_dim))
        queries = apply_rotary_pos_emb(queries, cos, sin, unsqueeze_dim=2)
        rows = apply_rotary_pos_emb(self.kv_norm(self.kv_proj(hidden_states))[None], cos, sin)

        attended = torch.zeros_like(queries[0])
        if self.swa_cache.metadata() is not None:
            # Rows of a step may be read by its other requests, as in all of vLLM's attention.
            self._write(rows[0, 0], hidden_states[0])
            tokens = _StepTokens(hidden_states[0], latent[0], queries[0])
            self._attend(tokens, attended)
        attended = apply_rotary_pos_emb(attended[None], cos, -sin, unsqueeze_dim=2)
        groups = attended.reshape(1, num_tokens, self.config.o_groups, -1)
        return self.o_b_proj(self.o_a_proj(groups).flatten(2)), None

    def _write(self, rows: torch.Tensor, hidden_states: torch.Tensor) -> None:
        metadata = self.swa_cache.metadata()
        assert metadata is not None
        self.swa_cache.write(rows, metadata.slot_mapping[: len(rows)])
        for compressor in (self.paged_compressor, self.paged_indexer):
            if compressor is not None:
                compressor.update(hidden_states)

    def _attend(self, tokens: _StepTokens, attended: torch.Tensor) -> None:
        metadata = self.swa_cache.metadata()
        assert metadata is not None
        for index, request in enumerate(metadata.requests):
            window_start = max(request.start - self.sliding_window + 1, 0)
            window = self.swa_cache.read_request(index, window_start, request.end)
            rows = keys = None
            if self.paged_compressor is not None:
                num_rows = request.end // self.paged_compressor.ratio
                rows = self.paged_compressor.row_cache.read_request(index, 0, num_rows)
            if self.paged_indexer is not None:
                keys = self.paged_indexer.row_cache.read_request(index, 0, num_rows)
            for start in range(request.start, request.end, _TILE_TOKENS):
                tile = _tile(request, start)
                first = max(start - self.sliding_window + 1, 0)
                attended[tile.tokens] = self._attend_tile(
                    tokens.cut(tile.tokens),
                    tile,
                    window[first - window_start : tile.end - window_start],
                    rows,
                    keys,
                )

    def _attend_tile(
        self,
        tokens: _StepTokens,
        tile: RequestSlice,
        window: torch.Tensor,
        rows: torch.Tensor | None,
        keys: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return ``[num_queries, heads, head size]`` for consecutive queries of a request.

        Args:
            tokens: The queries.
            tile: Where they lie.
            window: ``[num_tokens, head size]``, the rows up to the last query.
            rows: ``[num_rows, head size]``, compressed; those not closed yet are masked.
            keys: ``[num_rows, index head size]``, where an indexer selects rows.
        """
        positions = torch.arange(tile.start, tile.end)
        age = positions[:, None] - torch.arange(tile.end - len(window), tile.end)[None]
        attends = (age >= 0) & (age < self.sliding_window)
        if self.paged_compressor is not None and rows is not None and len(rows):
            num_closed = (positions + 1) // self.paged_compressor.ratio
            selected = torch.arange(len(rows))[None] < num_closed[:, None]
            if self.paged_indexer is not None and keys is not None:
                selected = self.paged_indexer.select(
                    tokens.hidden_states, tokens.latent, keys, selected, positions
                )
            attends = torch.cat([attends, selected], dim=1)
            window = torch.cat([window, rows])
        return self._shared_kv_attention(tokens.queries, window, attends)

    def _shared_kv_attention(
        self, queries: torch.Tensor, rows: torch.Tensor, attends: torch.Tensor
    ) -> torch.Tensor:
        """Attend with one row as key and value of all heads, and a sink for each head."""
        rows = rows.to(queries.dtype)
        scores = torch.einsum("qhd,rd->hqr", queries, rows).float() * self.scaling
        scores = scores.masked_fill(~attends[None], float("-inf"))
        sinks = self.sinks.float().view(-1, 1, 1).expand(-1, scores.shape[1], 1)
        weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
        return torch.einsum("hqr,rd->qhd", weights.to(rows.dtype), rows)


def _state_cache(prefix: str, spec: KVCacheSpec, specs: Dsv4Specs) -> PagedCache | RingCache:
    """Return where a compressor's state is: in the pool's pages, or in rings beside it."""
    if not carries_ring(specs.window):
        return PagedCache(prefix, spec)
    speculative = get_current_vllm_config().speculative_config
    return RingCache(spec, speculative.num_speculative_tokens if speculative else 0)


def _tile(request: RequestSlice, start: int) -> RequestSlice:
    """Return the part of a request's tokens that starts at position ``start``."""
    end = min(start + _TILE_TOKENS, request.end)
    offset = request.tokens.start - request.start
    return RequestSlice(tokens=slice(offset + start, offset + end), start=start, end=end)
