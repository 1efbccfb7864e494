# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout on the CPU (see real_runs): DSpark drafts, with hits as without."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.upstream.npu_reference.check_planted_faults import wrap
from tests.upstream.npu_reference.check_whole_runs import (
    BEST,
    FEW_BLOCKS,
    abort_some,
    answers_as_without_hits,
    answers_twice,
    preempt_and_resume,
    share_indices,
)
from tests.upstream.npu_reference.check_whole_runs_of_mooncake import (
    all_free,
    decode,
    pair,
    prefill,
)
from tests.upstream.npu_reference.check_whole_runs_of_tier import (
    GRANULE,
    engine_with_tier,
    fill,
    loaded,
)
from tests.upstream.npu_reference.dspark_checkpoint import BLOCK, publish_dspark
from tests.upstream.npu_reference.engine import MODEL, Engine, answered, tokens_of
from tests.upstream.npu_reference.instances import num_read
from tests.upstream.npu_reference.routing import choices
from tests.upstream.npu_reference.tags import TagError

_NUM_REQUESTS = 40
# Closer choices of experts are made by rounding, with hits otherwise than without.
_ROUNDING = 3e-6


def drafting(folder: Path) -> dict[str, Any]:
    """Write the tiny model with DSpark layers; return the settings of an engine that uses it."""
    model = folder / "dspark"
    publish_dspark(Path(os.environ[MODEL]), model, [answer for _, answer in answered()])
    return {"num_drafts": BLOCK, "method": "dspark", "model": model}


def engine_with_dspark(folder: Path, **settings: Any) -> Engine:
    """Make an engine of the tiny model with DSpark layers."""
    return Engine(**{"switches": BEST, **drafting(folder), **settings})


@pytest.mark.parametrize(
    "settings",
    [
        {"rows": 32},
        {"rows": 64},
        {"rows": 128},
        {"rows": 32, "num_drafts": 1},
        {"rows": 32, "max_num_batched_tokens": 77},
        {"rows": 32, "async_scheduling": True, "num_gpu_blocks_override": 1000},
    ],
    ids=["32", "64", "128", "one", "cut", "async"],
)
def test_drafts_change_no_token(tmp_path, settings):
    answers_twice(engine_with_dspark(tmp_path, **settings), hits=True)


def test_hits_where_layers_share_indices(tmp_path):
    settings = drafting(tmp_path)
    share_indices(settings["model"])
    answers_as_without_hits(Engine(rows=32, switches=BEST, **settings))


def test_requests_are_preempted_and_resumed(tmp_path):
    preempt_and_resume(engine_with_dspark(tmp_path, rows=32, **FEW_BLOCKS))


def test_aborted_requests_leave_nothing_wrong(tmp_path):
    abort_some(engine_with_dspark(tmp_path, rows=32))


def test_drafts_where_it_is_decoded(tmp_path):
    """The rows of draft layers come with the prompt's: all that drafts read is compared."""
    prompts, expected = map(list, zip(*answered(), strict=True))
    sides = drafting(tmp_path)
    with pair(tmp_path / "pair", sides, sides) as (producer, consumer):
        for _ in range(2):
            said = decode(consumer, prompts, prefill(producer, prompts))
            assert [answer.tokens for answer in said] == expected
        assert consumer.call(num_read) > 10_000
        assert all_free(producer, consumer)


def test_blocks_of_a_prefill_side_that_does_not_draft_are_refused(tmp_path):
    """Rows of draft layers would be whatever was in those blocks before."""
    prompts = [prompt for prompt, _ in answered()]
    sides = drafting(tmp_path)
    with pair(tmp_path / "pair", {"model": sides["model"]}, sides) as (producer, consumer):
        said = decode(consumer, prompts, prefill(producer, prompts))
        assert all(answer.tokens == [] for answer in said)


def test_drafts_behind_what_a_tier_holds(tmp_path):
    engine = engine_with_tier(rows=32, **drafting(tmp_path))
    fill(engine)
    for (prompt, _), count in zip(answered(), loaded(engine), strict=True):
        assert len(prompt) - 1 - count < GRANULE, f"{count} of {len(prompt)} tokens were loaded"


class Drafted(NamedTuple):
    """What became of a request.

    Attributes:
        answer: Its tokens.
        num_cached: Tokens that it hit.
        drafts: Tokens that were known -> what was drafted behind them.
        num_accepted: Of the drafts.
        margin: The closest choice of experts.
    """

    answer: list[int]
    num_cached: int
    drafts: dict[int, list[int]]
    num_accepted: int
    margin: float


def test_drafts_with_hits_are_those_without(tmp_path):
    engine = engine_with_dspark(tmp_path, rows=32, num_gpu_blocks_override=3000)
    bases = [prompt for prompt, _ in answered() if len(prompt) > 128]
    asked = [[*bases[i % len(bases)], i + 3, *range(40, 40 + i % 29)] for i in range(_NUM_REQUESTS)]
    with drafts_of(engine) as ask:
        for base in bases:
            ask(base)
        cached = [ask(prompt) for prompt in asked]
        cold = []
        for prompt in asked:
            assert engine.core.scheduler.reset_prefix_cache()
            cold.append(ask(prompt))
    assert all(request.num_cached for request in cached)
    assert not any(request.num_cached for request in cold)
    pairs = [
        (hit, miss)
        for hit, miss in zip(cached, cold, strict=True)
        if min(hit.margin, miss.margin) > _ROUNDING
    ]
    assert len(pairs) > len(asked) * 3 // 4
    for hit, miss in pairs:
        assert (hit.answer, hit.drafts) == (miss.answer, miss.drafts)
    accepted, drafted = (
        [sum(get(pair[side]) for pair in pairs) for side in (0, 1)]
        for get in (lambda r: r.num_accepted, lambda r: sum(map(len, r.drafts.values())))
    )
    assert accepted[0] == accepted[1] > 0 and drafted[0] == drafted[1] > 10 * accepted[0]


@contextmanager
def drafts_of(engine: Engine) -> Iterator[Callable[[Sequence[int]], Drafted]]:
    """Give what answers one prompt and tells what was drafted for it."""
    drafts: dict[int, list[int]] = {}
    accepted: list[int] = []
    scheduler = engine.core.scheduler
    update, stats = scheduler.update_draft_token_ids, scheduler.make_spec_decoding_stats

    def updated(drafted: Any) -> None:
        update(drafted)
        for request in map(scheduler.requests.get, drafted.req_ids):
            if request is not None and request.spec_token_ids:
                drafts[request.num_tokens] = list(request.spec_token_ids)

    def counted(total: Any, *, num_accepted_tokens: int, **others: Any) -> Any:
        accepted.append(num_accepted_tokens)
        return stats(total, num_accepted_tokens=num_accepted_tokens, **others)

    def ask(prompt: Sequence[int]) -> Drafted:
        drafts.clear()
        accepted.clear()
        choices.margin = math.inf
        (output,) = engine.answer([prompt])
        told = tokens_of([output])[0], output.num_cached_tokens, dict(drafts), sum(accepted)
        return Drafted(*told, choices.margin)

    scheduler.update_draft_token_ids = updated
    scheduler.make_spec_decoding_stats = counted
    yield ask


# Planted faults


def change_context(engine: Engine, change: Callable[[Any, Any], Any]) -> None:
    """Change where rows of a step's tokens are put in the draft layers."""

    def store(original: Any, rows: Any, slots: Any, attention: Any) -> None:
        changed = change(rows, slots)
        if changed is not None:
            original(rows, changed, attention)

    wrap(engine.runner.drafter.model.model, "_store_standard_swa_kv", store)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda rows, slots: None, "nothing"),
        (lambda rows, slots: slots + 1, "another prefix|nothing"),
        # Rows of accepted drafts stay what the block of drafts left there.
        (lambda rows, slots: slots if len(slots) > BLOCK + 1 else None, "another prefix"),
    ],
    ids=["not-kept", "a-row-behind", "scratch"],
)
def test_rows_that_drafts_must_not_read(tmp_path, change, found):
    engine = engine_with_dspark(tmp_path, rows=32)
    change_context(engine, change)
    with pytest.raises(TagError, match=rf"read ({found}) .*mtp\."):
        for prompt in (prompt for prompt, _ in answered() if len(prompt) > 128):
            engine.answer([prompt])
