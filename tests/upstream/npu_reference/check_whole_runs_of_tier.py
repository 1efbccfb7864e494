# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout on the CPU (see real_runs): a tier in host memory below its KV cache."""

from __future__ import annotations

from typing import Any

import pytest

from tests.upstream.npu_reference.check_whole_runs import BEST
from tests.upstream.npu_reference.engine import Engine, answered, tokens_of
from tests.upstream.npu_reference.tags import TagError
from tests.upstream.npu_reference.tier_tags import follow_tier

GRANULE = 128


def engine_with_tier(*, async_above_mib: float = 64.0, **settings: Any) -> Engine:
    """Make an engine whose tier holds everything."""
    from vllm.config import KVTransferConfig

    tier = {"backend": "host", "gib": 0.5, "staging_mib": 64, "load_seconds": 300}
    tier |= {"least_gain_tokens": 0}  # prompts are short, and share prefixes
    transfer = KVTransferConfig(
        kv_connector="GranuleTierConnector",
        kv_role="kv_both",
        kv_connector_extra_config=tier | {"async_above_mib": async_above_mib},
    )
    engine = Engine(
        switches=BEST,
        kv_transfer_config=transfer,
        disable_hybrid_kv_cache_manager=False,
        **settings,
    )
    follow_tier(engine.tagged.memory)
    return engine


def fill(engine: Engine) -> None:
    """Answer all prompts one after another, so that each is stored, and forget the KV cache."""
    prompts, expected = zip(*answered(), strict=True)
    assert [tokens_of(engine.answer([prompt]))[0] for prompt in prompts] == list(expected)
    assert engine.core.scheduler.reset_prefix_cache()


def loaded(engine: Engine) -> list[int]:
    """Answer all prompts at once; return the tokens of each that were not computed."""
    prompts, expected = zip(*answered(), strict=True)
    outputs = engine.answer(prompts)
    assert tokens_of(outputs) == list(expected)
    return [output.num_cached_tokens for output in outputs]


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        (32, {}),
        (64, {"num_drafts": 1}),
        (128, {}),
        (32, {"async_above_mib": 0.0}),
        (32, {"async_scheduling": True, "num_gpu_blocks_override": 1000}),
    ],
    ids=["32", "64-drafts", "128", "async-loads", "async-steps"],
)
def test_what_left_the_cache_is_loaded(rows, settings):
    engine = engine_with_tier(rows=rows, **settings)
    fill(engine)
    cached = loaded(engine)
    for (prompt, _), count in zip(answered(), cached, strict=True):
        behind = len(prompt) - 1 - count
        lost = GRANULE * (1 + bool(settings.get("num_drafts")))
        assert behind < lost, f"{count} of {len(prompt)} tokens were loaded"
    assert engine.tagged.memory.num_read > 10_000


# Planted faults


def load_into_the_next_row(engine: Engine) -> None:
    """Let every row go where the one behind it belongs."""
    from vllm_ascend.tier.orders import Segment

    places = Segment.places

    def shifted(self: Any) -> Any:
        blocks, rows, moved = places(self)
        return blocks, (rows + 1) % (rows.max() + 1), moved

    Segment.places = shifted  # type: ignore[method-assign]


def test_rows_that_are_loaded_into_other_places():
    engine = engine_with_tier(rows=32)
    fill(engine)
    load_into_the_next_row(engine)
    with pytest.raises(TagError, match="read"):
        loaded(engine)
