# SPDX-License-Identifier: Apache-2.0
"""``mix``: a chat service and coding assistants on one server, half of the requests each."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from vllm_ascend_evaluation.replay.generators.agentic import agentic
from vllm_ascend_evaluation.replay.generators.chat import chat
from vllm_ascend_evaluation.replay.generators.sessions import Draft

_HOUR_MS = 3_600_000.0
# Of what a coding session sends, so much comes in the hour in which it starts (mean of 20 seeds).
_REQUESTS_PER_SESSION = 16.5
# Token ids and session numbers of the coding assistants begin here.
_SECOND_HALF = 1 << 30


def mix(seed: int, num_requests: int) -> Iterator[Draft]:
    """Yield requests without end, about ``num_requests`` of them in the first hour.

    Sessions start as often as that takes; within them all is as in ``chat`` and ``agentic``.

    Args:
        seed: The same seed gives the same requests.
        num_requests: At least one.
    """
    per_kind = num_requests / 2
    conversations = chat(seed, ms_per_request=_HOUR_MS / per_kind)
    coding = agentic(
        seed, ms_per_session=_HOUR_MS / per_kind * _REQUESTS_PER_SESSION, first_id=_SECOND_HALF
    )
    numbered = (draft._replace(session=draft.session + _SECOND_HALF) for draft in coding)
    return heapq.merge(conversations, numbered, key=lambda draft: draft.arrival_ms)
