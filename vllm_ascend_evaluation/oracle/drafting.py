# SPDX-License-Identifier: Apache-2.0
"""The fake model and its fake drafter: which token comes next, and what is guessed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from vllm_ascend_evaluation.oracle.digests import PrefixDigests, next_token


class FakeModel:
    """Samples deterministically: the next token is a function of the prefix.

    Args:
        vocabulary: number of token ids.
        acceptance: probability that a draft is right, given that those before it were.
        seed: of the drafter's luck.
        continuation: nonce of a request; equal prefixes continue equally under equal nonces.
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        acceptance: float,
        seed: int,
        continuation: Callable[[str], int],
    ) -> None:
        self._vocabulary = vocabulary
        self._acceptance = acceptance
        self._continuation = continuation
        self._random = random.Random(seed)

    def sample(self, request_id: str, digests: PrefixDigests) -> int:
        """The token behind all that is known."""
        return next_token(digests[len(digests)], self._continuation(request_id), self._vocabulary)

    def verify(
        self, request_id: str, digests: PrefixDigests, draft_token_ids: Sequence[int]
    ) -> list[int]:
        """Append what the model says: the right drafts and one token more.

        Returns:
            The tokens appended; one more than drafts were accepted.
        """
        sampled: list[int] = []
        for draft in (*draft_token_ids, None):
            token = self.sample(request_id, digests)
            digests.append(token)
            sampled.append(token)
            if token != draft:
                break
        return sampled

    def propose(self, request_id: str, digests: PrefixDigests, count: int) -> list[int]:
        """Guess the next `count` tokens; the guesses are right up to a random point."""
        length = len(digests)
        drafts: list[int] = []
        for _ in range(count):
            token = self.sample(request_id, digests)
            if self._random.random() >= self._acceptance:
                drafts.append((token + 1) % self._vocabulary)
                break
            drafts.append(token)
            digests.append(token)
        digests.truncate(length)
        drafts.extend([0] * (count - len(drafts)))
        return drafts
