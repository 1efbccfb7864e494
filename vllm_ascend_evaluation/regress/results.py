# SPDX-License-Identifier: Apache-2.0
"""What was measured, with what settings: the form of finished steps, reports and baselines."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.server_access.server import Target

SCHEMA_VERSION = 4
# The steps, by their names in JSON.
PERFORMANCE = "performance"
ACCURACY = "accuracy"
AIS_BENCH = "ais_bench"
VLLM = "vllm"
# Requests sent ahead of a load, of its first prompt. Behind it the common beginning is cached:
# without it, chance decides how many of the first requests are looked up before it is.
WARM_UPS = 1

# The usage in the answers to a load.
USAGE = "usage.prompt_tokens_details"
# How hits were counted up to schema 2: per look-up, and a request that waits is looked up again.
LOOK_UPS = "vllm:prefix_cache_hits_total of vllm:prefix_cache_queries_total"

# Steps with drafts, drafts in them, and those that the target accepted: in all, and by position.
DRAFTS, DRAFTED, ACCEPTED = OF_DRAFTS = tuple(
    f"vllm:spec_decode_num_{what}_total" for what in ("drafts", "draft_tokens", "accepted_tokens")
)
ACCEPTED_AT = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="'

# Settings of a load that may differ from the baseline's: both are medians of the same load.
HOW_OFTEN = ("warmup", "repeats")

Count = Annotated[int, Field(ge=0)]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class PerformanceSettings:
    """The load; only results of the same load are compared.

    Attributes:
        tool: ``ais_bench`` or ``vllm`` (``vllm bench serve``).
        input_tokens: Tokens of a prompt.
        output_tokens: Tokens of an answer.
        concurrency: Requests in flight.
        requests: Requests in all.
        shared_percent: Share of a prompt that all prompts begin with.
        warmup: Loads to warm up, which are not counted.
        repeats: Loads that are; figures are their medians.
    """

    tool: str
    input_tokens: Count
    output_tokens: Count
    concurrency: Count
    requests: Count
    shared_percent: Count
    warmup: Count = 0
    repeats: Annotated[int, Field(ge=1)] = 1

    @property
    def shared_tokens(self) -> int:
        """Tokens that all prompts begin with."""
        return self.input_tokens * self.shared_percent // 100

    @property
    def loads_in_words(self) -> str:
        """How many loads count, and how many were put before them."""
        counts = ((self.repeats, "load"), (self.warmup, "warm-up load"))
        return " after ".join(f"{count} {name}{'s' * (count != 1)}" for count, name in counts)


@dataclass(frozen=True)
class Times:
    """What the tool measured, over all requests.

    Attributes:
        requests: Requests answered.
        prompt_tokens: Their prompts' tokens.
        output_tokens: Their answers' tokens.
        seconds: From the first request to the last token.
        ttft_avg_ms: Time to first token, mean.
        ttft_p90_ms: The same, 90th percentile.
        tpot_avg_ms: Time per token behind the first; ``None`` if no answer had two.
        tpot_p90_ms: The same, 90th percentile.
        output_tokens_per_s: Answers' tokens per second of the run.
    """

    requests: Count
    prompt_tokens: Count
    output_tokens: Count
    seconds: Number
    ttft_avg_ms: Number
    ttft_p90_ms: Number
    tpot_avg_ms: Number | None
    tpot_p90_ms: Number | None
    output_tokens_per_s: Number


@dataclass(frozen=True)
class CacheUse:
    """What the prefix caches of all engines did for the same requests.

    Attributes:
        prompt_tokens: Tokens of their prompts.
        hit_tokens: Those found in the cache; ``None`` if no answer says how many.
        counters: Other counters that grew or could have, by name.
        source: What told the hits: a counter of the server, or the usage in its answers.
    """

    prompt_tokens: Count
    hit_tokens: Count | None
    counters: dict[str, Number]
    source: str

    @property
    def hit_rate_percent(self) -> float | None:
        """Hits per prompt token; ``None`` if either was not counted."""
        if self.hit_tokens is None or not self.prompt_tokens:
            return None
        return 100.0 * self.hit_tokens / self.prompt_tokens

    @property
    def acceptance_percent(self) -> float | None:
        """Accepted drafts in percent of all; ``None`` if there were none."""
        drafted = self.counters.get(DRAFTED)
        return 100.0 * self.counters.get(ACCEPTED, 0.0) / drafted if drafted else None


@dataclass(frozen=True)
class Load:
    """One load, put on the server once.

    Attributes:
        times: As the tool measured them.
        cache: What the server found in its cache.
    """

    times: Times
    cache: CacheUse


@dataclass(frozen=True)
class Performance:
    """The performance step.

    Attributes:
        settings: The load.
        loads: What was measured, each time it was put.
        finished: When, ISO 8601.
    """

    settings: PerformanceSettings
    loads: Annotated[tuple[Load, ...], Field(min_length=1)]
    finished: str

    def total(self, value: Callable[[Load], float]) -> float:
        """Return the sum over all loads."""
        return sum(map(value, self.loads))

    @property
    def hit_tokens(self) -> int | None:
        """The sum of the hits; ``None`` if no load tells its own."""
        told = [hits for load in self.loads if (hits := load.cache.hit_tokens) is not None]
        return sum(told) if told else None

    @property
    def hit_rates(self) -> tuple[float, ...]:
        """The hit rate of each load in percent; nothing if no load tells its own.

        Where one does, a load that tells nothing had no hits: vLLM leaves a 0 out of its answers.
        """
        rates = [load.cache.hit_rate_percent for load in self.loads]
        return tuple(rate or 0.0 for rate in rates) if any(r is not None for r in rates) else ()

    @property
    def counters(self) -> dict[str, float]:
        """The sums of the other counters."""
        names = {name: None for load in self.loads for name in load.cache.counters}
        return {
            name: sum(load.cache.counters.get(name, 0.0) for load in self.loads) for name in names
        }


@dataclass(frozen=True)
class AccuracySettings:
    """How questions are asked; only results of the same settings are compared.

    Attributes:
        tool: ``ais_bench``, or ``vllm`` for the questions' own client.
        questions: Questions in the file.
        digest: SHA-256 prefix of the file.
        max_tokens: Longest answer.
        temperature: Of sampling.
        concurrency: Requests in flight.
    """

    tool: str
    questions: Annotated[int, Field(ge=1)]
    digest: str
    max_tokens: Count
    temperature: Number
    concurrency: Count


@dataclass(frozen=True)
class Accuracy:
    """The accuracy step.

    Attributes:
        settings: How it was asked.
        correct: Questions answered rightly.
        unanswered: Texts without an answer; ``None`` if the tool does not say.
        cut: Texts that ended at ``max_tokens``; ``None`` if the tool does not say.
        finished: When, ISO 8601.

    Raises:
        ValueError: More are right than there are.
    """

    settings: AccuracySettings
    correct: Count
    unanswered: int | None
    cut: int | None
    finished: str

    def __post_init__(self) -> None:
        if self.correct > self.settings.questions:
            raise ValueError(f"{self.correct} of {self.settings.questions} questions are right")

    @property
    def percent(self) -> float:
        """Questions answered rightly, in percent."""
        return 100.0 * self.correct / self.settings.questions


@dataclass(frozen=True)
class Measured:
    """All finished steps."""

    target: Target
    performance: Performance | None = None
    accuracy: Accuracy | None = None
    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, with derived rates beside the counts they come from."""
        data = _ADAPTER.dump_python(self)
        if self.performance is not None:
            for load, entry in zip(self.performance.loads, data[PERFORMANCE]["loads"], strict=True):
                entry["cache"]["hit_rate_percent"] = load.cache.hit_rate_percent
        if self.accuracy is not None:
            data[ACCURACY]["percent"] = self.accuracy.percent
        return data


_ADAPTER = TypeAdapter(Measured)
_LOADS = TypeAdapter(Load)


def load_to_json(load: Load) -> str:
    """Return a load as a line of JSON."""
    return _LOADS.dump_json(load).decode()


def load_from_json(text: str) -> Load:
    """Return the load of a line.

    Raises:
        ValueError: It is none.
    """
    return _LOADS.validate_json(text)


def read_measured(path: Path, what: str) -> Measured:
    """Read finished steps, a report or a baseline.

    Args:
        path: The file.
        what: How the user knows it, for errors.

    Raises:
        BadInputError: It is none; says what is wrong.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        measured = _ADAPTER.validate_python(_in_this_schema(data))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise BadInputError(f"{what} {path}: {place}: {first['msg']}") from error
    except json.JSONDecodeError as error:
        raise BadInputError(
            f"{what} {path}: not JSON, so no report and no baseline of regress: {error}"
        ) from error
    except (OSError, ValueError) as error:
        raise BadInputError(f"{what} {path}: {error}") from error
    if measured.schema_version != SCHEMA_VERSION:
        raise BadInputError(
            f"{what} {path}: schema_version {measured.schema_version}, expected {SCHEMA_VERSION}"
        )
    return measured


def _in_this_schema(data: Any) -> Any:
    """Return what a file of schema 1 to 3 means in this one.

    Schema 1 knew one load alone; 1 and 2 took the hits from counters of look-ups; up to 3, answers
    that told nothing counted as no hits.
    """
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version not in (1, 2, 3):
        return data
    step = data.get(PERFORMANCE)
    if isinstance(step, dict):
        loads = (
            [{n: step.get(n) for n in ("times", "cache")}] if version == 1 else step.get("loads")
        )
        if isinstance(loads, list):
            read = _without_untold_hits if version == 3 else _counted_by_look_ups
            step = {**step, "loads": [*map(read, loads)]}
    return {**data, PERFORMANCE: step, "schema_version": SCHEMA_VERSION}


def _without_untold_hits(load: Any) -> Any:
    cache = load.get("cache") if isinstance(load, dict) else None
    if not isinstance(cache, dict) or cache.get("source") != USAGE or cache.get("hit_tokens") != 0:
        return load
    return {**load, "cache": {**cache, "hit_tokens": None}}


def _counted_by_look_ups(load: Any) -> Any:
    cache = load.get("cache") if isinstance(load, dict) else None
    if not isinstance(cache, dict):
        return load
    renamed = {**cache, "prompt_tokens": cache.get("query_tokens"), "source": LOOK_UPS}
    return {**load, "cache": renamed}
