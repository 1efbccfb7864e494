# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's own DeepSeek-V4: what the paged one must say."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from transformers import DeepseekV4ForCausalLM, DynamicCache

from tests.e2e.models.engines import Answer

_CHUNK_TOKENS = 512


class Reference:
    """Greedy answers of a model, without pages or scheduler."""

    def __init__(self, folder: Path) -> None:
        self._model = DeepseekV4ForCausalLM.from_pretrained(folder).eval()

    def answers_to_prefixes(
        self, tokens: Sequence[int], lengths: Iterable[int], max_tokens: int
    ) -> dict[int, Answer]:
        """Return the answers to ``tokens[:length]``, in one pass over the tokens."""
        answers: dict[int, Answer] = {}
        cache = DynamicCache(config=self._model.config)
        done = 0
        for length in sorted(set(lengths)):
            logits = torch.empty(0)
            for start in range(done, length, _CHUNK_TOKENS):
                logits = self._step(tokens[start : min(start + _CHUNK_TOKENS, length)], cache)
            done = length
            answers[length] = self._decode(logits, copy.deepcopy(cache), max_tokens)
        return answers

    def answer(self, tokens: Sequence[int], max_tokens: int) -> Answer:
        """Return the answer to one prompt."""
        return self.answers_to_prefixes(tokens, [len(tokens)], max_tokens)[len(tokens)]

    def _decode(self, logits: torch.Tensor, cache: DynamicCache, max_tokens: int) -> Answer:
        tokens: list[int] = []
        logprobs: list[float] = []
        while True:
            distribution = logits.log_softmax(dim=-1)
            tokens.append(int(distribution.argmax()))
            logprobs.append(float(distribution[tokens[-1]]))
            if len(tokens) == max_tokens:
                return Answer(tuple(tokens), tuple(logprobs), 0)
            logits = self._step(tokens[-1:], cache)

    @torch.no_grad()
    def _step(self, tokens: Sequence[int], cache: DynamicCache) -> torch.Tensor:
        ids = torch.tensor([list(tokens)])
        return self._model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[
            0, -1
        ]
