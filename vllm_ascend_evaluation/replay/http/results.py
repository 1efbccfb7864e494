# SPDX-License-Identifier: Apache-2.0
"""What a replay against a server found out; in JSON the same names as of any other replay."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vllm_ascend_evaluation.replay.http.client import Answer
from vllm_ascend_evaluation.replay.results import (
    SCHEMA_VERSION,
    Bounds,
    HitRates,
    LengthBucket,
    length_buckets,
)

_BUCKET_EDGES = (0, 64, 256, 1024, 4096, 16_384, 65_536, 1 << 40)
_MAX_SAMPLES = 200
# No server has hits that are cut finer, in tokens.
_LEAST_GRANULE = 8


@dataclass(frozen=True)
class Times:
    """Times in milliseconds."""

    avg: float
    p50: float
    p90: float


@dataclass(frozen=True)
class HttpSample:
    """The counts of a run when so many requests were answered."""

    num_requests: int
    prompt_tokens: int
    hit_tokens: int


@dataclass(frozen=True)
class HttpRun(HitRates):
    """One workload on one server; all counts are of answered requests.

    Attributes:
        variant: Name of the model.
        url: The server.
        workload: Name of the workload.
        arrivals: How requests came in, in words.
        vocab_size: Ids of prompts were below it.
        scale: Prompts had one of so many of their tokens.
        num_requests: Requests.
        num_requests_hit: Requests with a hit.
        prompt_tokens: Prompt tokens as the server counts them.
        sent_tokens: Prompt tokens as they were sent.
        hit_tokens: Prompt tokens that the server found in its cache.
        output_tokens: Tokens of answers.
        num_reports: Answers that told their cached tokens.
        tells_hits: ``False`` if these are no prefix hits; see :func:`are_taken_over`.
        seconds: Wall-clock time of the run.
        ttft_ms: Time to first token, from sending; ``None`` without a request.
        tpot_ms: Time per token behind the first; ``None`` if no answer had two.
        samples: Over time, in the order of answers.
        buckets: By prompt length.
        complete: ``False`` if not everything was answered.
    """

    variant: str
    url: str
    workload: str
    arrivals: str
    vocab_size: int
    scale: int
    num_requests: int
    num_requests_hit: int
    prompt_tokens: int
    sent_tokens: int
    hit_tokens: int
    output_tokens: int
    num_reports: int
    tells_hits: bool
    seconds: float
    ttft_ms: Times | None
    tpot_ms: Times | None
    samples: tuple[HttpSample, ...]
    buckets: tuple[LengthBucket, ...]
    complete: bool

    def rates_in_json(self) -> dict[str, float | None]:
        """Return the rates as reports name them; ``None`` for what the server does not tell."""
        rates = super().rates_in_json()
        return {name: rate if self.tells_hits else None for name, rate in rates.items()}

    def per_second(self, count: int) -> float:
        """Return a count of this run per second of it."""
        return count / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class HttpWorkload:
    """One workload as it was sent.

    Attributes:
        workload: Name of the workload.
        description: Its shape in words, before anything was dropped or scaled.
        digest: SHA-256 prefix over the answered requests.
        bounds: What an unlimited cache would hit in the answered requests, from their prompts.
        num_dropped: Requests left out because their prompts are too long.
        runs: What the server made of it.
    """

    workload: str
    description: str
    digest: str
    bounds: Bounds
    num_dropped: int
    runs: tuple[HttpRun, ...]

    @property
    def notes(self) -> list[str]:
        """What a reader of the numbers must know."""
        return [note for run in self.runs for note in _notes(run, self.bounds)]


@dataclass(frozen=True)
class HttpReport:
    """Everything that one command sent.

    Attributes:
        command: The command line.
        seed: Seed of the generated prompts.
        workloads: Those that were begun.
        complete: ``False`` if not everything was answered.
        failures: What the server did wrong.
    """

    command: str
    seed: int
    workloads: tuple[HttpWorkload, ...]
    complete: bool
    failures: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, with derived rates beside the counts they come from."""
        data = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        for entry, workload in zip(data["workloads"], self.workloads, strict=True):
            entry["notes"] = workload.notes
            for values, run in zip(entry["runs"], workload.runs, strict=True):
                values.update(run.rates_in_json())
                values["requests_per_s"] = round(run.per_second(run.num_requests), 4)
                values["prompt_tokens_per_s"] = round(run.per_second(run.prompt_tokens), 2)
                values["output_tokens_per_s"] = round(run.per_second(run.output_tokens), 2)
        return data


def _notes(run: HttpRun, bounds: Bounds) -> list[str]:
    notes = []
    if run.num_requests and not run.num_reports:
        notes.append(
            "the server did not report cached tokens in any answer, which counts as no hits "
            "(vLLM reports hits only with --enable-prompt-tokens-details)"
        )
    if run.prompt_tokens != run.sent_tokens:
        notes.append(
            f"the server counts {run.prompt_tokens:,} prompt tokens, {run.sent_tokens:,} were sent"
        )
    if not run.tells_hits:
        notes.append(
            "these are not prefix hits: every answer calls its whole prompt cached, or all but one "
            "token of it, as a decode instance does that takes prompts over from others. Hits are "
            "told by the /metrics of the prefill instances "
            '(vllm:prompt_tokens_by_source_total{source="local_cache_hit"})'
        )
        return notes
    # What prompts share does not depend on their order, but for the last token of each.
    most = bounds.granule_1 / 100.0 * run.prompt_tokens + run.num_requests
    if run.complete and run.hit_tokens > most:
        notes.append(
            "more hits than an unlimited cache would have that was empty at first: the server's "
            "cache held prompts from before (another --seed gives others)"
        )
    return notes


def are_taken_over(answers: Sequence[Answer]) -> bool:
    """Return whether cached tokens are prompts taken over from another instance, not hits.

    A decode instance calls the whole prompt cached, most often but for the last token, whatever was
    asked before. Hits are multiples of a granule and never a whole prompt: where all that is cached
    is a multiple of 8 tokens, it may as well be hits of prompts that came before.
    """
    counts = [(answer.prompt_tokens, answer.cached_tokens or 0) for answer in answers]
    are_whole = all(cached >= prompt - 1 for prompt, cached in counts)
    return are_whole and any(c == prompt or c % _LEAST_GRANULE for prompt, c in counts)


def count(answers: Mapping[int, Answer], sent: Mapping[int, int]) -> dict[str, Any]:
    """Return the counts, times and shares of a run as fields of :class:`HttpRun`.

    Args:
        answers: Number of the request -> its answer, in the order of answers.
        sent: Number of the request -> prompt tokens sent.
    """
    seen = list(answers.values())
    tpots = [answer.tpot_s for answer in seen if answer.tpot_s is not None]
    return {
        "num_requests": len(seen),
        "num_requests_hit": sum(_hits(answer) > 0 for answer in seen),
        "prompt_tokens": sum(answer.prompt_tokens for answer in seen),
        "sent_tokens": sum(sent[number] for number in answers),
        "hit_tokens": sum(map(_hits, seen)),
        "output_tokens": sum(answer.output_tokens for answer in seen),
        "tells_hits": not are_taken_over(seen),
        "num_reports": sum(answer.cached_tokens is not None for answer in seen),
        "ttft_ms": _times([answer.ttft_s for answer in seen]),
        "tpot_ms": _times(tpots),
        "samples": _samples(seen),
        "buckets": length_buckets(
            ((answer.prompt_tokens, _hits(answer)) for answer in seen), _BUCKET_EDGES
        ),
    }


def _hits(answer: Answer) -> int:
    return answer.cached_tokens or 0


def _times(seconds: Sequence[float]) -> Times | None:
    if not seconds:
        return None
    p50, p90 = np.percentile(seconds, [50, 90])
    return Times(1e3 * float(np.mean(seconds)), 1e3 * float(p50), 1e3 * float(p90))


def _samples(answers: Sequence[Answer]) -> tuple[HttpSample, ...]:
    prompts = itertools.accumulate(answer.prompt_tokens for answer in answers)
    hits = itertools.accumulate(map(_hits, answers))
    samples = [HttpSample(i, p, h) for i, (p, h) in enumerate(zip(prompts, hits, strict=True), 1)]
    stride = -(-len(samples) // _MAX_SAMPLES) or 1
    # From the end: the last word is the state that also the totals describe.
    return tuple(samples[::-1][::stride][::-1])
