# SPDX-License-Identifier: Apache-2.0
"""Which common prefix is the smallest that hits: asked of a real scheduler, not computed."""

from __future__ import annotations

import itertools

from vllm.v1.core.sched.scheduler import Scheduler

from vllm_ascend.dry_run.scheduler import make_request
from vllm_ascend.dry_run.worker import SamplingWorker

_REQUESTS = (1, 2, 3)
# Behind the common prefix, if there is room: so many granules and two alignments, so that nothing
# that is kept for the sake of a prompt's end lies where the prefix ends.
_OWN_GRANULES = 16
_LEAST_OWN_TOKENS = 8
_VOCABULARY = 1 << 16


class PrefixProbe:
    """Sends requests with a common prefix, again and again, to an otherwise idle scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._worker = SamplingWorker(scheduler)
        self._names = map(str, itertools.count())
        self._first_token = 0
        self._own_tokens = _LEAST_OWN_TOKENS

    def smallest_prefix(
        self, granule: int, alignment: int, max_tokens: int
    ) -> tuple[int | None, int | None]:
        """Return (tokens, request): the smallest common prefix that hits, and from which request.

        Args:
            granule: Only its multiples are tried, in tokens.
            alignment: Hits are multiples of it, in tokens; twice that is the most that a draft
                layer can need.
            max_tokens: Longest request.

        Returns:
            ``(None, None)`` if no prefix that fits hits.
        """
        # - 1: the first token of the answer has a place in the context, too.
        room = max_tokens - _LEAST_OWN_TOKENS - 1
        most = min(2 * alignment + granule, room) // granule
        wanted = 2 * alignment + _OWN_GRANULES * granule
        self._own_tokens = _LEAST_OWN_TOKENS + min(wanted, room - most * granule)
        if most < 1 or self._hit_by(most * granule) is None:
            return None, None
        low, high = 0, most  # low does not hit, high does
        while high - low > 1:
            middle = (low + high) // 2
            if self._hit_by(middle * granule) is None:
                low = middle
            else:
                high = middle
        return high * granule, self._hit_by(high * granule)

    def _hit_by(self, prefix_tokens: int) -> int | None:
        """Return the first of three requests that hits the prefix which they share."""
        self._scheduler.reset_prefix_cache()
        self._first_token += 1
        # A prefix of its own each time: nothing of an earlier try can be hit.
        prefix = [self._first_token % _VOCABULARY] * prefix_tokens
        for request in _REQUESTS:
            own = [_VOCABULARY + request] * self._own_tokens
            if self._num_cached_tokens(prefix + own):
                return request
        return None

    def _num_cached_tokens(self, prompt_token_ids: list[int]) -> int:
        """Run one request to its end and return its hit."""
        scheduler = self._scheduler
        request = make_request(scheduler, next(self._names), prompt_token_ids, max_tokens=1)
        scheduler.add_request(request)
        hit = 0
        while scheduler.requests:
            output = scheduler.schedule()
            hit += sum(new.num_computed_tokens for new in output.scheduled_new_reqs)
            scheduler.update_from_output(output, self._worker.execute(output))
            drafts = self._worker.take_draft_token_ids()
            if drafts is not None:
                scheduler.update_draft_token_ids(drafts)
        return hit
