# SPDX-License-Identifier: Apache-2.0
"""``agentic``: sessions of a coding assistant.

A session begins with the assistant's tools and instructions, which all sessions on one version of
it share (Zipf's law), and with what the project tells it; a quarter of the sessions are resumed and
begin with the history so far. Then every request repeats the prompt before it, the answer, and adds
what a tool returned. Tools answer within seconds, users within minutes, so requests come in bursts.
Now and then the assistant starts sub-agents: sessions of a few requests, side by side, on tools of
their own, whose reports the next prompt has. Now and then it rewrites what is behind its
instructions (compaction), and everything else is new.

Fitted to Claude Code sessions in callanjfox/kv-cache-tester (``traces/``; its
``docs/trace_replay_tester.md`` tells of the whole collection: tools 8,000 to 12,000 tokens,
instructions 2,000 to 3,000, sessions that start with 20,160 tokens (median; upper quartile 71,168)
and end with 115,008, 96.9 % of the prompt tokens of a session seen before (median)). Fitted are 123
sessions whose prompts have at most 131,072 tokens: 4,364 requests, 284.5 million prompt tokens,
started 30 s apart on average.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vllm_ascend_evaluation.replay.generators.draws import LogNormal, Mixture, Zipf, tokens
from vllm_ascend_evaluation.replay.generators.sessions import Draft, Ids, interleave, num_tokens

# A prompt and its answer together.
MAX_TOKENS = 131_072
MS_PER_SESSION = 30_000.0

_NUM_VERSIONS = 6
_TOOLS_TOKENS = (10_000, 15_000)
_SUB_AGENT_TOOLS_TOKENS = (8_000, 12_000)
# What follows the tools at the start of a session, and how many requests it has: a new one, and one
# that is resumed.
_RESUMED_SHARE = 0.26
_PROJECT_TOKENS = LogNormal(5_500, 0.5)
_HISTORY_TOKENS = LogNormal(55_000, 0.55, maximum=110_000)
_REQUESTS = LogNormal(30, 0.9, maximum=160)
_RESUMED_REQUESTS = LogNormal(13, 0.8, maximum=160)
_MIN_REQUESTS = 3
_ANSWER = Mixture(LogNormal(185, 0.55), LogNormal(1_100, 0.95, maximum=16_000), share=0.18)
# Early in a session it reads more.
_EARLY_REQUESTS = 8
_EARLY_TOOL_RESULT = LogNormal(1_000, 1.65, maximum=60_000)
_TOOL_RESULT = LogNormal(370, 1.6, maximum=60_000)
_GAP_S = Mixture(LogNormal(13.9, 0.59), LogNormal(85, 2.0, minimum=60, maximum=86_400), share=0.2)
_COMPACTION_SHARE = 0.008
_SUB_AGENTS_SHARE = 0.003
_MAX_SUB_AGENTS = 4
_SUB_AGENT_REQUESTS = LogNormal(4, 0.6, maximum=20)
_SUB_AGENT_GAP_S = LogNormal(10, 0.5)
_TASK_TOKENS = LogNormal(600, 0.7)


def agentic(
    seed: int, *, ms_per_session: float = MS_PER_SESSION, first_id: int = 0
) -> Iterator[Draft]:
    """Yield requests without end, the first at 0 ms.

    Args:
        seed: The same seed gives the same requests.
        ms_per_session: Mean time between two starts of sessions.
        first_id: Smallest token id.
    """
    return interleave(_Assistant(seed, Ids(first_id)).sessions(ms_per_session))


class _Assistant:
    def __init__(self, seed: int, ids: Ids) -> None:
        self._rng = np.random.default_rng((seed, 0xA6E7))
        self._ids = ids
        self._rank = Zipf(_NUM_VERSIONS)
        self._tools = [self._between(*_TOOLS_TOKENS) for _ in range(_NUM_VERSIONS)]
        self._sub_agent_tools = [
            self._between(*_SUB_AGENT_TOOLS_TOKENS) for _ in range(_NUM_VERSIONS)
        ]

    def sessions(self, mean_gap_ms: float) -> Iterator[tuple[float, Iterator[Draft]]]:
        """Yield when each session starts, and its requests."""
        now_ms = 0.0
        number = 0
        while True:
            yield now_ms, self._session(number, now_ms)
            now_ms += self._rng.exponential(mean_gap_ms)
            number += 1

    def _session(self, number: int, now_ms: float) -> Iterator[Draft]:
        rng = self._rng
        tools = self._tools[self._rank.draw(rng)]
        resumed = rng.random() < _RESUMED_SHARE
        start = self._text(_HISTORY_TOKENS if resumed else _PROJECT_TOKENS)
        context = _Context(tools, (tools, start))
        requests = _RESUMED_REQUESTS if resumed else _REQUESTS
        num_requests = max(_MIN_REQUESTS, round(requests.draw(rng)))
        for request in range(num_requests):
            draft = self._request(now_ms, context, number)
            if draft is None:
                return
            yield draft
            now_ms += 1_000 * _GAP_S.draw(rng)
            if rng.random() < _COMPACTION_SHARE:
                context.rewrite(self._ids)
            if rng.random() < _SUB_AGENTS_SHARE:
                burst = self._burst(number, now_ms)
                yield from burst
                now_ms = burst[-1].arrival_ms + 1_000 * _SUB_AGENT_GAP_S.draw(rng)
            early = request < _EARLY_REQUESTS
            context.add(self._text(_EARLY_TOOL_RESULT if early else _TOOL_RESULT))

    def _burst(self, number: int, now_ms: float) -> list[Draft]:
        """Return the requests of some sub-agents that start at once, in order of arrival."""
        count = int(self._rng.integers(1, _MAX_SUB_AGENTS, endpoint=True))
        drafts = [draft for _ in range(count) for draft in self._sub_agent(number, now_ms)]
        return sorted(drafts, key=lambda draft: draft.arrival_ms)

    def _sub_agent(self, number: int, now_ms: float) -> Iterator[Draft]:
        rng = self._rng
        tools = self._sub_agent_tools[self._rank.draw(rng)]
        context = _Context(tools, (tools, self._text(_TASK_TOKENS)))
        for _ in range(max(1, round(_SUB_AGENT_REQUESTS.draw(rng)))):
            draft = self._request(now_ms, context, number)
            if draft is None:
                return
            yield draft
            now_ms += 1_000 * _SUB_AGENT_GAP_S.draw(rng)
            context.add(self._text(_EARLY_TOOL_RESULT))

    def _request(self, now_ms: float, context: _Context, number: int) -> Draft | None:
        """Return the request that the context makes, ``None`` if it has become too long."""
        prompt = context.texts
        answer = self._text(_ANSWER)
        if num_tokens(prompt) + len(answer) > MAX_TOKENS:
            return None
        context.add(answer)
        return Draft(now_ms, prompt, len(answer), number)

    def _text(self, lengths: LogNormal | Mixture) -> range:
        return self._ids.text(tokens(self._rng, lengths))

    def _between(self, low: int, high: int) -> range:
        return self._ids.text(int(self._rng.integers(low, high)))


@dataclass
class _Context:
    """What the next prompt begins with.

    Attributes:
        tools: The assistant's own part.
        texts: All of it, ``tools`` first.
    """

    tools: range
    texts: tuple[range, ...]

    def add(self, text: range) -> None:
        """Put a text behind it."""
        self.texts = (*self.texts, text)

    def rewrite(self, ids: Ids) -> None:
        """Replace all but the tools by new text of the same length."""
        self.texts = (self.tools, ids.text(num_tokens(self.texts[1:])))
