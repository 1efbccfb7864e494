# SPDX-License-Identifier: Apache-2.0
"""The paged model says what Hugging Face's says: every boundary, chunking, block size, batch."""

from __future__ import annotations

import pytest

from tests.e2e.models.engines import Answer, engine
from tests.e2e.models.hugging_face import Reference

LENGTHS = (
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    127,
    128,
    129,
    255,
    256,
    511,
    512,
    513,
    1000,
    4095,
    4096,
    4097,
)
BEST = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1", "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
DENSE = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1"}
MAX_TOKENS = 4


@pytest.fixture(scope="module")
def expected(reference, text) -> dict[int, Answer]:
    return reference.answers_to_prefixes(text, LENGTHS, MAX_TOKENS)


def assert_as_expected(answers: list[Answer], expected: dict[int, Answer]) -> None:
    for length, answer in zip(LENGTHS, answers, strict=True):
        assert answer.equals(expected[length]), (length, answer, expected[length])


@pytest.mark.parametrize(
    ("switches", "block_size"), [(BEST, 32), (BEST, 64), (BEST, 128), (DENSE, 32)]
)
def test_cold_and_hit(deepseek, text, expected, block_size, switches):
    """One after another: cold, then with whatever the requests before left behind."""
    prompts = [text[:length] for length in LENGTHS]
    with engine(deepseek, switches, block_size=block_size) as running:
        cold = []
        for prompt in prompts:
            running.forget()
            cold += running.ask([prompt], MAX_TOKENS)
        assert [answer.num_cached_tokens for answer in cold] == [0] * len(LENGTHS)
        assert_as_expected(cold, expected)
        hit = running.ask_one_by_one(prompts, MAX_TOKENS)
        assert_as_expected(hit, expected)
        if switches is BEST:
            # The longest prompt was answered last, so every prefix of it is there to the granule.
            assert [answer.num_cached_tokens for answer in hit] == [
                (length - 1) // 128 * 128 for length in LENGTHS
            ]


@pytest.mark.parametrize("chunk", [1, 37, 128, 129, 500], ids=lambda chunk: f"chunks of {chunk}")
def test_any_chunking(deepseek, text, expected, chunk):
    """A prefill cut anywhere, in a batch with others that are cut elsewhere."""
    longest = {1: 256, 500: max(LENGTHS)}.get(chunk, 1000)
    lengths = [length for length in LENGTHS if length <= longest]
    with engine(deepseek, BEST, block_size=128, long_prefill_token_threshold=chunk) as running:
        answers = running.ask([text[:length] for length in lengths], MAX_TOKENS)
    for length, answer in zip(lengths, answers, strict=True):
        assert answer.equals(expected[length]), (length, answer, expected[length])


def test_an_indexer_that_leaves_rows_out(deepseek_that_selects, text):
    """Where two rows are as good as equal rounding decides: one answer in ten may show it."""
    right = Reference(deepseek_that_selects).answers_to_prefixes(text, LENGTHS, MAX_TOKENS)
    prompts = [text[:length] for length in LENGTHS]
    with engine(deepseek_that_selects, BEST, block_size=128) as running:
        answers = running.ask_one_by_one(prompts, MAX_TOKENS)
    pairs = zip(answers, (right[length] for length in LENGTHS), strict=True)
    assert sum(not answer.equals(other) for answer, other in pairs) <= len(LENGTHS) // 10
