# SPDX-License-Identifier: Apache-2.0
"""What executes the scheduler's steps: the interface, and a worker that only samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from zlib import crc32

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request

_SAMPLED_TOKEN_ID = 7
_WRONG_DRAFT_ID = 8
_ACCEPTED_PERCENT = 60


class Worker(Protocol):
    """Executes what the scheduler scheduled."""

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Return what a model runner would."""
        ...

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """Return drafts for the requests of the last step; ``None`` without a drafter."""
        ...


class SamplingWorker:
    """A worker without a model and without checks: every finished prompt gets a token a step.

    With a drafter it also gets the drafts that were right. Whether the draft for a place of an
    answer is right depends on the request and the place alone, so that all variants of a
    comparison have the same luck.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._requests = scheduler.requests
        self._num_drafts = scheduler.num_spec_tokens
        self._last_request_ids: list[str] = []

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Sample one fixed token for every request that has computed all its tokens."""
        ids = self._last_request_ids = list(output.num_scheduled_tokens)
        drafts = output.scheduled_spec_decode_tokens
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
            sampled_token_ids=[self._sample(i, drafts.get(i, ())) for i in ids],
        )

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """Return drafts for the requests of the last step that go on; ``None`` if nobody drafts.

        Call it after the scheduler has processed the step's output.
        """
        if not self._num_drafts:
            return None
        alive = [self._requests[i] for i in self._last_request_ids if i in self._requests]
        return DraftTokenIds(
            [request.request_id for request in alive], [self._propose(request) for request in alive]
        )

    def _sample(self, request_id: str, drafts: Sequence[int]) -> list[int]:
        request = self._requests[request_id]
        if request.num_computed_tokens < request.num_tokens:
            return []
        wrong = (i for i, draft in enumerate(drafts) if draft != _SAMPLED_TOKEN_ID)
        # + 1: behind the last right draft the model itself knows the next token.
        return [_SAMPLED_TOKEN_ID] * (next(wrong, len(drafts)) + 1)

    def _propose(self, request: Request) -> list[int]:
        places = range(request.num_tokens, request.num_tokens + self._num_drafts)
        return [
            _SAMPLED_TOKEN_ID if _is_right(request.request_id, place) else _WRONG_DRAFT_ID
            for place in places
        ]


def _is_right(request_id: str, place: int) -> bool:
    return crc32(f"{request_id}:{place}".encode()) % 100 < _ACCEPTED_PERCENT
