# SPDX-License-Identifier: Apache-2.0
"""``chat``: an hour of a chat service with long documents.

A session is a system prompt, then turns of message and answer; every prompt repeats all before it.
All sessions share the service's own instructions; some choose an assistant, by Zipf's law, whose
instructions follow. Some turns are asked again: the user goes back and edits an earlier message.
The service has been running for an hour when the first request is taken, so sessions are under way.

Fitted to the conversation trace of Mooncake (Qin et al., FAST'25; kvcache-ai/Mooncake,
``FAST25-release/traces/conversation_trace.jsonl``): 12,031 requests in an hour, prompts of 12,035
tokens on average, at most 126,195, answers of 343, 37.36 % of all prompt tokens seen before. That
trace has no sessions; where a prompt goes on with an earlier one, it counts as the next turn. Turns
per session are as few as in collections of chats: 2.5 on average in WildChat (Zhao et al. 2024),
2.0 in LMSYS-Chat-1M (Zheng et al. 2023), 3.5 in ShareGPT (as counted by Yan et al. 2025).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vllm_ascend_evaluation.replay.generators.draws import LogNormal, Mixture, Zipf, tokens
from vllm_ascend_evaluation.replay.generators.sessions import Draft, Ids, interleave, num_tokens

MAX_PROMPT_TOKENS = 126_195
# 12,031 requests in an hour; a session has so many on average (see _TURNS).
MS_PER_REQUEST = 294.0
_REQUESTS_PER_SESSION = 1.57
_WARM_UP_MS = 3_600_000.0

# All prompts of the trace have the same first block, and none is shorter than 890 tokens.
_SERVICE_TOKENS = 885
# 6 % of the trace's requests share more than that with another one, but do not go on with it:
# another session on the same instructions, or a turn that is asked again.
_NUM_ASSISTANTS = 400
_ASSISTANT_SHARE = 0.12
_ASSISTANT_TOKENS = LogNormal(1_500, 0.9)
# Rounded down: three quarters of the sessions have one turn, the longest dozens.
_TURNS = LogNormal(1.2, 0.8, maximum=50)
# From one request of a session to its next: 123 s in the median, 474 s at the 90th percentile.
_THINK_S = LogNormal(115, 1.1, minimum=15)
_EDITED_SHARE = 0.1
# Often a line, else a document: pasted, or read from a file.
_FIRST_MESSAGE = Mixture(LogNormal(8_200, 1.08), LogNormal(35, 1.3), share=0.28)
_NEXT_MESSAGE = Mixture(LogNormal(22, 1.0), LogNormal(4_500, 0.8), share=0.2)
# Three quarters of the answers lie around 400 tokens, the others are a few words.
_ANSWER = Mixture(LogNormal(400, 0.4, maximum=2_000), LogNormal(35, 1.0), share=0.25)


def chat(
    seed: int, *, ms_per_request: float = MS_PER_REQUEST, first_id: int = 0
) -> Iterator[Draft]:
    """Yield requests without end, the first at 0 ms or shortly after.

    Args:
        seed: The same seed gives the same requests.
        ms_per_request: Mean time between two.
        first_id: Smallest token id.
    """
    service = _Service(seed, Ids(first_id))
    sessions = service.sessions(ms_per_request * _REQUESTS_PER_SESSION)
    return (draft for draft in interleave(sessions) if draft.arrival_ms >= 0)


class _Service:
    def __init__(self, seed: int, ids: Ids) -> None:
        self._rng = np.random.default_rng((seed, 0xC4A7))
        self._ids = ids
        self._instructions = ids.text(_SERVICE_TOKENS)
        self._rank = Zipf(_NUM_ASSISTANTS)
        self._assistants = [
            ids.text(tokens(self._rng, _ASSISTANT_TOKENS)) for _ in range(_NUM_ASSISTANTS)
        ]

    def sessions(self, mean_gap_ms: float) -> Iterator[tuple[float, Iterator[Draft]]]:
        """Yield when each session starts, and its requests."""
        now_ms = -_WARM_UP_MS
        number = 0
        while True:
            now_ms += self._rng.exponential(mean_gap_ms)
            yield now_ms, self._session(number, now_ms)
            number += 1

    def _session(self, number: int, now_ms: float) -> Iterator[Draft]:
        rng = self._rng
        history: tuple[range, ...] = (self._instructions,)
        if rng.random() < _ASSISTANT_SHARE:
            history += (self._assistants[self._rank.draw(rng)],)
        turns = int(_TURNS.draw(rng)) or 1
        # What was said before each turn: where an edited message takes the place of the old one.
        before = [history]
        for turn in range(turns):
            if turn > 1 and rng.random() < _EDITED_SHARE:
                history = before[int(rng.integers(1, len(before)))]
            lengths = _NEXT_MESSAGE if turn else _FIRST_MESSAGE
            prompt = (*history, self._ids.text(tokens(rng, lengths)))
            if num_tokens(prompt) > MAX_PROMPT_TOKENS:
                return
            answer = self._ids.text(tokens(rng, _ANSWER))
            yield Draft(now_ms, prompt, len(answer), number)
            history = (*prompt, answer)
            before.append(history)
            now_ms += 1_000 * _THINK_S.draw(rng)
