# SPDX-License-Identifier: Apache-2.0
"""The time of a step, from what it does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


class StepWork(NamedTuple):
    """What a step does, as far as its time depends on it; works of several steps add up.

    Attributes:
        num_steps: 1.
        num_requests: That compute something in it.
        num_tokens: That they compute: of prompts and answers, and drafts.
        prefill_pairs: Pairs of a token that a prompt computes and one before it in the same step,
            or itself.
        prefill_context: Pairs of such a token and one that was computed, or found, before the step.
        decode_rows: Tokens behind which those that answer go on, their new ones included.
    """

    num_steps: int = 1
    num_requests: int = 0
    num_tokens: int = 0
    prefill_pairs: int = 0
    prefill_context: int = 0
    decode_rows: int = 0

    @classmethod
    def of(cls, output: SchedulerOutput) -> StepWork:
        """Return what a step does, in time proportional to its requests.

        A request decodes if it has answered before and computes nothing but one token behind that
        and its drafts. One that was preempted and computes its tokens anew is a prefill.
        """
        num_pairs = num_context = num_rows = 0
        drafts = output.scheduled_spec_decode_tokens
        for name, num_before, has_answered in _contexts(output):
            num_new = output.num_scheduled_tokens[name]
            if has_answered and num_new <= 1 + len(drafts.get(name, ())):
                num_rows += num_before + num_new
            else:
                num_pairs += pairs_among(num_new)
                num_context += num_before * num_new
        num_requests = len(output.num_scheduled_tokens)
        num_tokens = output.total_num_scheduled_tokens
        return cls(1, num_requests, num_tokens, num_pairs, num_context, num_rows)

    def __add__(self, other: object) -> StepWork:
        """Return what both do together."""
        if not isinstance(other, StepWork):
            return NotImplemented
        return StepWork(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def pairs_among(num_new: int) -> int:
    """Return how many pairs tokens are, each with those before it and with itself."""
    return num_new * (num_new + 1) // 2


def _contexts(output: SchedulerOutput) -> Iterator[tuple[str, int, bool]]:
    """Yield of each request its name, its computed tokens, and whether it has answered before."""
    for new in output.scheduled_new_reqs:
        yield new.req_id, new.num_computed_tokens, False
    of = output.scheduled_cached_reqs
    rows = zip(of.req_ids, of.num_computed_tokens, of.num_output_tokens, strict=True)
    for name, num_computed, num_answered in rows:
        yield name, num_computed, num_answered > 0


@dataclass(frozen=True)
class CostModel:
    """How long a step would take: the virtual clock of arrivals and of modelled times.

    A sum of a few terms, none below zero, each of which has a cause in the engine. Attention over
    compressed rows, and the index that chooses among them, take time in proportion to the context,
    which the coefficients of a layout hold; what a window or a choice limits is the same for every
    token and is in its term.

    Attributes:
        step_ms: Of a step, whatever it does, in ms: scheduling, launches, waiting for each other.
        token_us: Per computed token, in µs: dense layers and experts.
        request_us: Per request of a step, in µs: its part of the inputs, of sampling, its answer.
        prefill_pair_ns: Per pair of tokens of a prompt that one step computes, in ns: attention.
        prefill_context_ns: Per pair of such a token and one in front of the step, in ns. A kernel
            that computes what its mask then hides takes half as long as for the former.
        decode_row_ns: Per token of context of a request that answers, in ns: its rows are read.
        front_end_ms: Of a request, in ms, beside all steps: HTTP, its checks, the way of its first
            token back. It comes on top of the time to first token.
    """

    step_ms: float = 20.0
    token_us: float = 60.0
    request_us: float = 0.0
    prefill_pair_ns: float = 0.0
    prefill_context_ns: float = 0.0
    decode_row_ns: float = 0.0
    front_end_ms: float = 0.0

    def step_duration_ms(self, work: StepWork) -> float:
        """Return the modelled time of a step."""
        duration_ms = self.step_ms + self.token_us * work.num_tokens / 1000.0
        duration_ms += self.request_us * work.num_requests / 1e3
        attention_ns = self.prefill_pair_ns * work.prefill_pairs
        attention_ns += self.prefill_context_ns * work.prefill_context
        return duration_ms + (attention_ns + self.decode_row_ns * work.decode_rows) / 1e6

    def parameters(self) -> dict[str, float]:
        """Return the terms by name, those of two-number models and whatever is not zero."""
        always = ("step_ms", "token_us")
        return {name: value for name, value in asdict(self).items() if value or name in always}


TERMS: tuple[str, ...] = tuple(field.name for field in fields(CostModel))
