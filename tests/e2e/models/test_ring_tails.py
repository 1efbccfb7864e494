# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4 with its compressor state in rings: it answers as Hugging Face, hit or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from tests.e2e.models import test_cache_on_and_off, test_mtp, workloads
from tests.e2e.models.engines import Answer, Engine, engine
from tests.e2e.models.test_against_hugging_face import BEST, LENGTHS, MAX_TOKENS
from vllm_ascend.core.ring_tails.orders import RingCopy
from vllm_ascend_evaluation.models.ring_cache import RING_WORKER, RingCache, RingStep

RINGS = {"worker_cls": RING_WORKER}


def assert_equal(answers: list[Answer], right: list[Answer]) -> None:
    for index, (answer, other) in enumerate(zip(answers, right, strict=True)):
        assert answer.equals(other), (index, answer, other)


@pytest.fixture(scope="module")
def expected(reference, text) -> list[Answer]:
    answers = reference.answers_to_prefixes(text, LENGTHS, MAX_TOKENS)
    return [answers[length] for length in LENGTHS]


@pytest.mark.parametrize("block_size", [32, 128])
def test_cold_and_hit_at_every_128_tokens(deepseek, text, expected, block_size):
    prompts = [text[:length] for length in LENGTHS]
    with engine(deepseek, BEST, block_size=block_size, **RINGS) as running:
        assert_equal(running.ask(prompts, MAX_TOKENS), expected)
        running.forget()
        running.ask(prompts[-1:], MAX_TOKENS)
        hit = running.ask_one_by_one(prompts, MAX_TOKENS)
    assert_equal(hit, expected)
    assert [answer.num_cached_tokens for answer in hit] == [
        (length - 1) // 128 * 128 for length in LENGTHS
    ]


@pytest.mark.parametrize("chunk", [37, 500])
def test_any_chunking(deepseek, text, expected, chunk):
    """A boundary passed by a step, or the end of one; and rings of many requests in a batch."""
    prompts = [text[:length] for length in LENGTHS if length <= 1000]
    arguments = {"block_size": 128, "long_prefill_token_threshold": chunk, **RINGS}
    with engine(deepseek, BEST, **arguments) as running:
        for _ in range(2):
            assert_equal(running.ask(prompts, MAX_TOKENS), expected[: len(prompts)])


@pytest.mark.parametrize(
    "workload",
    [
        test_cache_on_and_off.chat,
        test_cache_on_and_off.sixteen_users,
        test_cache_on_and_off.aborts,
    ],
)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_answers_are_those_without_a_cache(deepseek, workload: Callable, is_async: bool):
    right = test_cache_on_and_off.expected(workload, deepseek)
    arguments = {"block_size": 128, "async_scheduling": is_async, **RINGS}
    with engine(deepseek, BEST, **arguments) as running:
        answers = workload(running)
    assert_equal(answers, right)
    assert sum(answer.num_cached_tokens > 0 for answer in answers) >= len(answers) // 2


def test_preempted_requests_restore_their_rings(deepseek):
    prompts = [workloads.fresh(20 + 20 * seed, seed) for seed in range(8)]
    arguments = {"max_model_len": 256, "max_num_batched_tokens": 256, "block_size": 128}
    with engine(deepseek, BEST, enable_prefix_caching=False, **arguments) as running:
        right = running.ask(prompts, max_tokens=90)
    with engine(deepseek, BEST, num_gpu_blocks_override=30, **arguments, **RINGS) as running:
        preempted = test_cache_on_and_off.watch_preemptions(running)
        answers = running.ask(prompts, max_tokens=90)
    assert preempted, "the pool was large enough"
    assert_equal(answers, right)


@pytest.mark.parametrize("num_drafts", [1, 3])
def test_drafts_change_nothing(deepseek, num_drafts):
    """Answers that pass boundaries, of drafts some of which are accepted."""
    prompts = [workloads.fresh(n, seed=n) for n in (5, 120, 127, 250, 900)]
    with engine(deepseek, BEST, block_size=128, enable_prefix_caching=False) as running:
        right = running.ask_one_by_one(prompts, 20)
    again = [[*prompt, *answer.tokens] for prompt, answer in zip(prompts, right, strict=True)]
    with engine(deepseek, BEST, block_size=128, enable_prefix_caching=False) as running:
        right_again = running.ask_one_by_one(again, 4)
    drafts = {"method": "mtp", "num_speculative_tokens": num_drafts}
    with engine(deepseek, BEST, block_size=128, speculative_config=drafts, **RINGS) as running:
        test_mtp.foretell(running, right, num_drafts)
        assert_equal(running.ask_one_by_one(prompts, 20), right)
        hit = running.ask_one_by_one(again, 4)
    assert_equal(hit, right_again)
    assert [answer.num_cached_tokens for answer in hit] == [0, 0, 0, 128, 768]


# Planted bugs


@contextmanager
def one_step_late() -> Iterator[None]:
    """A snapshot is taken of what the ring holds a step later."""
    start, waiting = RingStep.__init__, [{}]

    def late(self, *args) -> None:
        start(self, *args)
        waiting.append(self.snapshots)
        self.snapshots = waiting.pop(0)

    with mock.patch.object(RingStep, "__init__", late):
        yield


@contextmanager
def from_another_boundary() -> Iterator[None]:
    """The snapshot that was taken first is restored always."""
    restore = RingCache._restore

    def restore_first(self, order: RingCopy) -> None:
        restore(self, order._replace(slot=(next(iter(self._snapshots)),)))

    with mock.patch.object(RingCache, "_restore", restore_first):
        yield


@contextmanager
def not_restored() -> Iterator[None]:
    with mock.patch.object(RingCache, "_restore", lambda self, order: None):
        yield


def questions(running: Engine) -> list[Answer]:
    """Leave a prefix at several boundaries, twice."""
    prefix = workloads.fresh(900, seed=0)
    prompts = [prefix, *workloads.diverging(prefix, (640, 650, 771, 895)), prefix]
    return running.ask_one_by_one(prompts * 2)


def num_wrong(deepseek) -> int:
    """Return how many answers differ from those without a cache, or end the engine."""
    right = test_cache_on_and_off.expected(questions, deepseek)
    with engine(deepseek, BEST, block_size=128, **RINGS) as running:
        try:
            answers = questions(running)
        except (KeyError, ValueError):  # no snapshot, or no number for a logprob
            return len(right)
    return sum(not a.equals(b) for a, b in zip(answers, right, strict=True))


def test_without_a_bug_all_is_right(deepseek):
    assert num_wrong(deepseek) == 0


@pytest.mark.parametrize("bug", [one_step_late, from_another_boundary, not_restored])
def test_a_planted_bug_is_caught(deepseek, bug):
    with bug():
        assert num_wrong(deepseek) > 0
