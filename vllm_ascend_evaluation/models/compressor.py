# SPDX-License-Identifier: Apache-2.0
"""A compressor whose open windows live in pages: tokens in, one row for every closed window out.

Source of the arithmetic: the DeepSeek-V4 paper, section 2.3 (overlapping windows for ratio 4, plain
ones for ratio 128), with the weights and norms of Hugging Face's modules.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers.models.deepseek_v4.modeling_deepseek_v4 import apply_rotary_pos_emb

from vllm_ascend_evaluation.models.paged_cache import PagedCache, RequestSlice
from vllm_ascend_evaluation.models.ring_cache import RingCache


@dataclass(frozen=True)
class WindowTokens:
    """Values and scores of the tokens that a step's closed windows are made of.

    Attributes:
        values: ``[num_tokens, width]``.
        scores: ``[num_tokens, width]``, without the bias of their place in the window.
    """

    values: torch.Tensor
    scores: torch.Tensor


class PagedCompressor:
    """One Hugging Face compressor (C4, C128 or the indexer's), its state and its rows in pages.

    A state row holds a token's values and scores. A step reads the rows of the windows that were
    open when it started; everything inside the step comes from the step itself.

    Args:
        module: The compressor, with ``kv_proj``, ``gate_proj``, ``position_bias``, ``kv_norm``.
        state_cache: Where state rows lie.
        row_cache: Where compressed rows lie.
    """

    def __init__(
        self, module: nn.Module, state_cache: PagedCache | RingCache, row_cache: PagedCache
    ) -> None:
        self.module = module
        self.state_cache = state_cache
        self.row_cache = row_cache
        self.ratio: int = module.compress_rate
        self.width: int = module.head_dim
        # Values have a share in their own window and, twice as wide, one in the next.
        self.overlapping = module.kv_proj.out_features == 2 * self.width

    def update(self, hidden_states: torch.Tensor) -> None:
        """Write the state of a step's tokens and the rows of the windows that they close.

        Args:
            hidden_states: ``[num_tokens, hidden size]``.
        """
        values = self.module.kv_proj(hidden_states).float()
        scores = self.module.gate_proj(hidden_states).float()
        states = torch.cat([values, scores], dim=-1)
        metadata = self.row_cache.metadata()
        assert metadata is not None
        # All reads come before all writes: kernels give no order between requests of a step.
        rows = [
            self._compress(self._window_tokens(states, request, index), request)
            for index, request in enumerate(metadata.requests)
        ]
        self.state_cache.keep(states, metadata.requests)
        slots = metadata.slot_mapping[: len(states)]
        self.row_cache.write(torch.cat(rows).to(hidden_states.dtype), slots[slots >= 0])

    def _window_tokens(
        self, states: torch.Tensor, request: RequestSlice, index: int
    ) -> WindowTokens:
        """Return the tokens of the closing windows of a request, one window more if overlapping."""
        first_window = request.start // self.ratio - (1 if self.overlapping else 0)
        num_tokens = (request.end // self.ratio - first_window) * self.ratio
        first_token = max(first_window * self.ratio, 0)
        read = self.state_cache.read_request(index, first_token, request.start)
        values, scores = torch.cat([read, states[request.tokens]]).chunk(2, dim=-1)
        if first_window < 0:  # nothing lies before the first window
            values = nn.functional.pad(values, (0, 0, self.ratio, 0))
            scores = nn.functional.pad(scores, (0, 0, self.ratio, 0), value=float("-inf"))
        return WindowTokens(values[:num_tokens], scores[:num_tokens])

    def _compress(self, tokens: WindowTokens, request: RequestSlice) -> torch.Tensor:
        """Return a row for every window that the request closes: ``[num_windows, head size]``."""
        first, last = request.start // self.ratio, request.end // self.ratio
        shape = (-1, self.ratio, tokens.values.shape[1])
        values = tokens.values.view(shape)
        scores = tokens.scores.view(shape) + self.module.position_bias.float()
        if self.overlapping:
            values, scores = self._overlap(values), self._overlap(scores)
        rows = (values * scores.softmax(dim=1)).sum(dim=1)
        rows = self.module.kv_norm(rows)
        positions = torch.arange(first, last, device=rows.device)[None] * self.ratio
        cos, sin = self.module.rotary_emb(rows, position_ids=positions, layer_type="compress")
        return apply_rotary_pos_emb(rows[None, None], cos, sin)[0, 0]

    def _overlap(self, windows: torch.Tensor) -> torch.Tensor:
        """Put the previous window's first half beside this window's second half."""
        return torch.cat([windows[:-1, :, : self.width], windows[1:, :, self.width :]], dim=1)
