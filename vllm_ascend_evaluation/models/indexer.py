# SPDX-License-Identifier: Apache-2.0
"""The C4 indexer: which compressed rows a query attends to."""

from __future__ import annotations

import torch
from transformers.models.deepseek_v4.modeling_deepseek_v4 import apply_rotary_pos_emb

from vllm_ascend_evaluation.models.compressor import PagedCompressor


class PagedIndexer(PagedCompressor):
    """Hugging Face's indexer, its own compressor's state and its keys in pages."""

    def select(
        self,
        hidden_states: torch.Tensor,
        latent: torch.Tensor,
        keys: torch.Tensor,
        visible: torch.Tensor,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        """Return which rows every query attends to: the best of those that it may see.

        Args:
            hidden_states: ``[num_queries, hidden size]``.
            latent: ``[num_queries, low rank]``, what queries are projected from.
            keys: ``[num_rows, index head size]``.
            visible: ``[num_queries, num_rows]``, rows of windows that were closed by then.
            positions: ``[num_queries]``, in the request.

        Returns:
            ``[num_queries, num_rows]``, at most ``index_topk`` true ones in a row.
        """
        num_best = min(self.module.index_topk, len(keys))
        queries = self.module.q_b_proj(latent).view(1, len(latent), -1, self.width)
        cos, sin = self.module.rotary_emb(
            queries, position_ids=positions[None], layer_type="compress"
        )
        queries = apply_rotary_pos_emb(queries, cos, sin, unsqueeze_dim=2)
        scores = self.module.scorer(queries, keys[None], hidden_states[None])[0]
        best = scores.masked_fill(~visible, float("-inf")).topk(num_best, dim=-1).indices
        return torch.zeros_like(visible).scatter_(1, best, value=True) & visible
