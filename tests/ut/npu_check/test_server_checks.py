# SPDX-License-Identifier: Apache-2.0
"""Against a model that is a function of its prompt and a cache of whole granules."""

from __future__ import annotations

import threading
import zlib

import pytest

from vllm_ascend.npu_check import server_checks
from vllm_ascend.npu_check.answers import Answer
from vllm_ascend.npu_check.outcome import Outcome, Verdict
from vllm_ascend.npu_check.prompts import ANSWER_TOKENS, LEAST_TOKENS, recall_prompt
from vllm_ascend.npu_check.server_checks import ServerChecks

GRANULE = 128


class ToyServer:
    """Answers at once; subclasses have faults."""

    def __init__(self) -> None:
        self._cached: set[tuple[str, tuple[int, ...]]] = set()
        self._lock = threading.Lock()

    def hit(self, prompt, salt):
        ends = range(GRANULE, len(prompt), GRANULE)
        return max((end for end in ends if (salt, tuple(prompt[:end])) in self._cached), default=0)

    def answer(self, prompt, salt):
        with self._lock:
            hit = self.hit(prompt, salt)
            self._cached |= {
                (salt, tuple(prompt[:end])) for end in range(GRANULE, len(prompt) + 1, GRANULE)
            }
        return self.scored(self.tokens(prompt, hit), hit)

    def tokens(self, prompt, hit):
        start = zlib.crc32(bytes(str(prompt), "ascii")) % 50
        return range(start, start + ANSWER_TOKENS)

    def scored(self, tokens, hit):
        return Answer(tuple(tokens), [{token: -0.1, -1: -2.0} for token in tokens], hit)


class AnotherToken(ToyServer):
    """Reads other rows behind a hit."""

    def tokens(self, prompt, hit):
        right = list(super().tokens(prompt, hit))
        return [*right[:5], -1, *right[6:]] if hit else right


class RoundedToken(AnotherToken):
    """Behind a hit, takes what is as likely."""

    def scored(self, tokens, hit):
        return Answer(tuple(tokens), [{token: -0.7, -1: -0.71} for token in tokens], hit)


class NoCache(ToyServer):
    def hit(self, prompt, salt):
        return 0


class TooDeep(ToyServer):
    """Hits rows of another prompt."""

    def hit(self, prompt, salt):
        return len(prompt) if super().hit(prompt, salt) else 0


class WithoutSalt(ToyServer):
    def answer(self, prompt, salt):
        return super().answer(prompt, "")


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """The real lengths would only take longer."""
    monkeypatch.setattr(server_checks, "REPEATED", (300, 1_000))
    monkeypatch.setattr(server_checks, "LEFT_AFTER", (384,))


def outcomes(server: ToyServer) -> dict[str, Outcome]:
    checks = ServerChecks(server, vocab_size=1000, margin=0.5).checks()
    return {check.name: check.outcome() for check, _ in checks}


def test_all_pass_on_a_server_that_is_right():
    ended = outcomes(ToyServer())
    assert list(ended) == ["repeat 300", "repeat 1,000", "leave after 384", "32 at once"]
    assert {outcome.verdict for outcome in ended.values()} == {Verdict.PASSED}
    assert ended["repeat 1,000"].numbers["hit_tokens"] == 896
    assert ended["leave after 384"].numbers["hit_tokens"] == 384
    assert ended["32 at once"].numbers["answers"] == 32
    assert all(
        outcome.numbers["answers_that_differ_by_rounding"] == 0 for outcome in ended.values()
    )


def test_another_token_behind_a_hit_fails_every_check():
    ended = outcomes(AnotherToken())
    assert {outcome.verdict for outcome in ended.values()} == {Verdict.FAILED}
    assert "from its token 6 on, which was likelier by 1.900 nats" in ended["repeat 300"].detail


def test_a_token_that_was_as_likely_is_rounding_and_is_counted():
    ended = outcomes(RoundedToken())
    assert {outcome.verdict for outcome in ended.values()} == {Verdict.PASSED}
    assert ended["repeat 300"].numbers["answers_that_differ_by_rounding"] == 1


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (NoCache, "0 tokens were cached, expected 128 to 256; is --enable-prompt"),
        (TooDeep, "300 tokens were cached, expected 128 to 256"),
    ],
)
def test_a_hit_of_another_length_fails(server, said):
    failed = outcomes(server())["repeat 300"]
    assert failed.verdict is Verdict.FAILED and failed.detail.startswith(said)


def test_a_prompt_that_hits_across_salts_fails():
    first = outcomes(WithoutSalt())["repeat 300"]
    assert first.verdict is Verdict.PASSED  # nothing was there before
    server = WithoutSalt()
    outcomes(server)
    assert outcomes(server)["repeat 300"].detail.endswith("expected 0")


def test_a_prompt_ends_as_its_passage_begins():
    text = list(range(200))
    prompt = recall_prompt(text, 30)
    assert prompt.token_ids == (*range(176), *range(30, 54))
    assert prompt.expected == tuple(range(54, 86))
    assert len(prompt.token_ids) == len(text) > LEAST_TOKENS
