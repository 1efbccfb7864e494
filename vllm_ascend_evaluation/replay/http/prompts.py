# SPDX-License-Identifier: Apache-2.0
"""Prompts for a real server: ids that its vocabulary has, lengths that it can bear."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.server_access.vocabulary import FIRST_ID, MIN_VOCABULARY
from vllm_ascend_evaluation.replay.readers.mooncake import BLOCK_TOKENS
from vllm_ascend_evaluation.replay.trace import TraceRequest, Workload, count_assumed

# Fewer tokens than this would no longer tell the blocks of a trace apart.
_MIN_BLOCK_TOKENS = 4
_CACHED_BLOCKS = 8192


@dataclass(frozen=True)
class PromptShape:
    """How the requests of a workload are fitted to a server.

    Attributes:
        vocab_size: Ids stay below it.
        seed: Another seed gives other tokens; what is equal stays equal.
        scale: Prompts have one of so many tokens, so that a trace's blocks have ``512 / scale``.
        max_prompt_tokens: Longer prompts are dropped; counted after scaling.
        max_requests: Only so many from the start.
        max_output_tokens: Cap on answers.
    """

    vocab_size: int = 1000
    seed: int = 0
    scale: int = 1
    max_prompt_tokens: int | None = None
    max_requests: int | None = None
    max_output_tokens: int | None = None

    def check(self) -> None:
        """Check the numbers.

        Raises:
            BadInputError: One is out of range.
        """
        if self.vocab_size < MIN_VOCABULARY:
            raise BadInputError(
                f"--vocab-size {self.vocab_size}: expected at least {MIN_VOCABULARY}"
            )
        if BLOCK_TOKENS % self.scale or BLOCK_TOKENS // self.scale < _MIN_BLOCK_TOKENS:
            largest = BLOCK_TOKENS // _MIN_BLOCK_TOKENS
            raise BadInputError(
                f"--scale {self.scale}: expected a power of two up to {largest}, so that the "
                f"{BLOCK_TOKENS} tokens of a trace's block become whole tokens"
            )


@dataclass(frozen=True)
class FittedWorkload:
    """A workload as it is sent.

    Attributes:
        workload: Its requests.
        num_dropped: Requests that are left out because they are too long.
    """

    workload: Workload
    num_dropped: int

    def within(self, max_model_len: int | None) -> FittedWorkload:
        """Return it without the requests that a server does not take.

        Args:
            max_model_len: What a prompt and its answer may have together, in tokens; ``None`` if
                the server does not say.

        Raises:
            BadInputError: No request is left.
        """
        if max_model_len is None:
            return self
        workload = self.workload.within(max_model_len, of="the server's ")
        return FittedWorkload(workload, self.num_dropped + workload.num_left_out)


class TokenMap:
    """Maps ids of any size into ``[4, vocab_size)``, each id always to the same one.

    Equal prefixes so stay equal. Runs of 512 ids that begin at a multiple of 512, which is what a
    Mooncake trace's blocks are, get tokens from a generator of their own, so that two blocks are
    no likelier to be equal, or to begin alike, than random ones.
    """

    def __init__(self, vocab_size: int, seed: int) -> None:
        self._vocab_size = vocab_size
        self._seed = seed
        self._run = functools.lru_cache(_CACHED_BLOCKS)(self._make_run)

    def __call__(self, ids: Collection[int] | np.ndarray) -> np.ndarray:
        """Return the ids to send.

        Args:
            ids: Ids of the workload, not negative.
        """
        blocks, offsets = np.divmod(np.asarray(ids, dtype=np.int64), BLOCK_TOKENS)
        different, places = np.unique(blocks, return_inverse=True)
        if not len(different):
            return offsets
        return np.stack([self._run(int(block)) for block in different])[places, offsets]

    def _make_run(self, block: int) -> np.ndarray:
        generator = np.random.default_rng((self._seed, block))
        return generator.integers(FIRST_ID, self._vocab_size, BLOCK_TOKENS, dtype=np.int32)


def fit(workload: Workload, shape: PromptShape) -> FittedWorkload:
    """Return a workload's requests as they are sent to a server.

    Raises:
        BadInputError: A number is out of range, or no request is left.
    """
    shape.check()
    limit = shape.max_prompt_tokens

    def short_enough() -> Iterator[TraceRequest]:
        for request in islice(workload.requests(), shape.max_requests):
            # Every K-th token: whatever two prompts share, they share a K-th of it.
            prompt = request.prompt_token_ids[:: shape.scale]
            if limit is None or len(prompt) <= limit:
                outputs = min(request.output_tokens, shape.max_output_tokens or 1 << 62)
                yield replace(request, prompt_token_ids=prompt, output_tokens=outputs)

    def requests() -> Iterator[TraceRequest]:
        map_tokens = TokenMap(shape.vocab_size, shape.seed)
        for request in short_enough():
            tokens = map_tokens(request.prompt_token_ids).tolist()
            yield replace(request, prompt_token_ids=tokens)

    left = [request.assumed for request in short_enough()]
    num_left = len(left)
    if not num_left:
        raise BadInputError(
            f"--max-prompt-tokens {limit}: every prompt of {workload.name} has more tokens"
        )
    num_read = min(workload.num_requests, shape.max_requests or workload.num_requests)
    fitted = replace(
        workload, num_requests=num_left, requests=requests, assumed=count_assumed(left)
    )
    return FittedWorkload(fitted, num_read - num_left)


def only(workload: Workload, is_wanted: Callable[[int], bool]) -> Workload:
    """Return a workload of those requests whose numbers, counted from 0, are wanted."""

    def requests() -> Iterator[TraceRequest]:
        for number, request in enumerate(workload.requests()):
            if is_wanted(number):
                yield request

    num_requests = sum(map(is_wanted, range(workload.num_requests)))
    return replace(workload, num_requests=num_requests, requests=requests)
