# SPDX-License-Identifier: Apache-2.0
"""Prompts whose answer stands far back in them, so that it takes the cache to know it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from vllm_ascend.server_access.vocabulary import FIRST_ID

ANSWER_TOKENS = 32
# Enough for a model to know where it has seen them.
_CUE_TOKENS = 24
LEAST_TOKENS = 2 * (_CUE_TOKENS + ANSWER_TOKENS)


@dataclass(frozen=True)
class RecallPrompt:
    """A prompt that ends as a passage of it begins.

    Attributes:
        token_ids: The prompt.
        expected: How the passage went on: what most models answer, as nothing else is likely.
    """

    token_ids: tuple[int, ...]
    expected: tuple[int, ...]


def random_tokens(count: int, vocab_size: int, seed: str) -> list[int]:
    """Return ids that mean nothing; a model can only repeat them."""
    return random.Random(seed).choices(range(FIRST_ID, vocab_size), k=count)


def recall_prompt(token_ids: Sequence[int], passage: int) -> RecallPrompt:
    """End a prompt with the beginning of one of its passages.

    Args:
        token_ids: The prompt, whose end is replaced: ``LEAST_TOKENS`` or more.
        passage: Where the passage begins; it ends before the cue does.
    """
    answer = passage + _CUE_TOKENS
    kept, cue = token_ids[: len(token_ids) - _CUE_TOKENS], token_ids[passage:answer]
    expected = token_ids[answer : answer + ANSWER_TOKENS]
    return RecallPrompt((*kept, *cue), tuple(expected))
