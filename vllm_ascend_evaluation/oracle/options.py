# SPDX-License-Identifier: Apache-2.0
"""How the fake model behaves and how strictly it is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class OracleOptions:
    """Options of a ShadowWorker.

    Attributes:
        vocabulary: number of token ids that the model samples from.
        acceptance: probability that a draft is right, given that those before it were.
        seed: of the drafter.
        strict_state: compressor states are read before any write of the step. Stock vLLM
            rests hits on states that another request writes in the same step.
        strict_draft: rows of the draft model are right at block ends too, where they depend on
            a token that the block's key does not name. Stock vLLM does not guarantee that.
        continuation: request id -> nonce; equal prefixes continue equally under equal nonces.
    """

    vocabulary: int = 64
    acceptance: float = 0.6
    seed: int = 0
    strict_state: bool = True
    strict_draft: bool = True
    continuation: Callable[[str], int] = lambda request_id: 0
