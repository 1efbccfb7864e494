# SPDX-License-Identifier: Apache-2.0
"""The same prompts with and without a hit, on a server that runs as it shall serve.

What only the NPU does, its kernels, graphs, streams and collectives, takes part in each.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from vllm_ascend.npu_check.answers import (
    Answer,
    first_difference,
    largest_score_difference,
    num_recalled,
)
from vllm_ascend.npu_check.outcome import Check, CheckFailedError
from vllm_ascend.npu_check.prompts import (
    ANSWER_TOKENS,
    LEAST_TOKENS,
    RecallPrompt,
    random_tokens,
    recall_prompt,
)
from vllm_ascend.npu_check.server import AnsweringServer

_GRANULE = 128  # tokens; a hit ends at its multiples
# Around one, two and more blocks of the 128:1 group, which cover 16,384 tokens.
REPEATED = (300, 4_000, 14_000, 33_000, 64_530)
LEFT_AFTER = (384, 5_000, 16_500, 30_001)
_OWN_TOKENS = 2_000
AT_ONCE = 32
_SHARED_AT_ONCE, _OWN_AT_ONCE = 5_000, 1_000
_OTHER_ROWS = "rows of another prompt, or none, would be read behind a hit"


class ServerChecks:
    """Makes the checks of one server.

    Args:
        server: Answers.
        vocab_size: Ids of prompts stay below it.
        margin: In nats: where a token was likelier than the other one by no more than this, the
            difference may be rounding.
    """

    def __init__(self, server: AnsweringServer, *, vocab_size: int, margin: float) -> None:
        self._server = server
        self._vocab_size = vocab_size
        self._margin = margin
        self._run = secrets.token_hex(4)  # nothing of an earlier run is hit

    def checks(self) -> Iterator[tuple[Check, int]]:
        """Yield the checks in their order, each with the tokens that its longest request has."""
        for count in REPEATED:
            run = partial(self._repeat, count)
            yield Check(f"repeat {count:,}", _OTHER_ROWS, run), count + ANSWER_TOKENS
        for shared in LEFT_AFTER:
            run = partial(self._leave, shared)
            longest = shared + _OWN_TOKENS + ANSWER_TOKENS
            yield Check(f"leave after {shared:,}", _OTHER_ROWS, run), longest
        shows = "requests that run together would read or overwrite rows of each other"
        longest = _SHARED_AT_ONCE + _OWN_AT_ONCE + ANSWER_TOKENS
        yield Check(f"{AT_ONCE} at once", shows, self._many_at_once), longest

    def _repeat(self, count: int) -> dict[str, float]:
        """The second time all but the end is found; with drafts, a granule less."""
        prompt = self._prompt(count, f"repeat {count}")
        cold, warm = (self._server.answer(prompt.token_ids, self._salt(count)) for _ in range(2))
        deepest = (count - 1) // _GRANULE * _GRANULE
        _expect_hit(cold, 0, 0)
        _expect_hit(warm, deepest - _GRANULE, deepest)
        return self._compare([(prompt, cold, warm)])

    def _leave(self, shared: int) -> dict[str, float]:
        """A prompt that begins like an earlier one answers as it does alone."""
        first = self._tokens(shared + _OWN_TOKENS, f"first {shared}")
        own = self._tokens(_OWN_TOKENS, f"own {shared}")
        prompt = recall_prompt((*first[:shared], *own), shared // 3)
        alone = self._server.answer(prompt.token_ids, self._salt(f"alone {shared}"))
        self._server.answer(first, self._salt(f"both {shared}"))
        behind_hit = self._server.answer(prompt.token_ids, self._salt(f"both {shared}"))
        _expect_hit(behind_hit, 1, shared)
        return self._compare([(prompt, alone, behind_hit)])

    def _many_at_once(self) -> dict[str, float]:
        """Answers of many requests together, with a prefix in common, are those one by one."""
        shared = self._tokens(_SHARED_AT_ONCE, "shared")
        texts = [(*shared, *self._tokens(_OWN_AT_ONCE, f"one {i}")) for i in range(AT_ONCE)]
        prompts = [recall_prompt(text, LEAST_TOKENS * i) for i, text in enumerate(texts)]
        alone = [
            self._server.answer(prompt.token_ids, self._salt(f"one {i}"))
            for i, prompt in enumerate(prompts)
        ]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            salt = self._salt("all")
            together = list(pool.map(lambda p: self._server.answer(p.token_ids, salt), prompts))
        return self._compare(list(zip(prompts, alone, together, strict=True)))

    def _compare(self, pairs: Sequence[tuple[RecallPrompt, Answer, Answer]]) -> dict[str, float]:
        """Return how far answers without a hit and behind one differ.

        Raises:
            CheckFailedError: By more than rounding.
        """
        differing = [first_difference(alone, other) for _, alone, other in pairs]
        for number, difference in enumerate(differing):
            if difference is not None and difference.gap > self._margin:
                raise CheckFailedError(
                    f"answer {number + 1} of {len(pairs)} is another one from its token "
                    f"{difference.place + 1} on, which was likelier by {difference.gap:.3f} nats "
                    f"(rounding: up to {self._margin:g})"
                )
        return {
            "hit_tokens": float(sum(other.cached_tokens for _, _, other in pairs)),
            "answers": float(len(pairs)),
            "answers_that_differ_by_rounding": float(sum(d is not None for d in differing)),
            "largest_score_difference_nats": round(
                max(largest_score_difference(alone, other) for _, alone, other in pairs), 6
            ),
            "tokens_recalled": float(
                sum(num_recalled(other, prompt.expected) for prompt, _, other in pairs)
            ),
        }

    def _prompt(self, count: int, seed: str) -> RecallPrompt:
        return recall_prompt(self._tokens(count, seed), count // 4)

    def _tokens(self, count: int, seed: str) -> list[int]:
        return random_tokens(count, self._vocab_size, seed)

    def _salt(self, name: object) -> str:
        return f"{self._run} {name}"


def _expect_hit(answer: Answer, least: int, most: int) -> None:
    if not least <= answer.cached_tokens <= most:
        expected = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        silent = "" if answer.cached_tokens else "; is --enable-prompt-tokens-details set?"
        raise CheckFailedError(
            f"{answer.cached_tokens:,} tokens were cached, expected {expected}{silent}"
        )
