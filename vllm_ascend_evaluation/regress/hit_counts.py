# SPDX-License-Identifier: Apache-2.0
"""How the hits of a load are counted: each request once, from counters or from its own answer.

vLLM's ``vllm:prefix_cache_queries_total`` and ``vllm:prefix_cache_hits_total`` count look-ups. A
request that waits for memory is looked up in every step and counts each time.
"""

from __future__ import annotations

from collections.abc import Mapping

from vllm_ascend_evaluation.regress.results import (
    ACCEPTED_AT,
    LOOK_UPS,
    OF_DRAFTS,
    USAGE,
    CacheUse,
    Performance,
)

PROMPT_TOKENS = "vllm:prompt_tokens_total"
# Our histogram notes a request when it starts, whether it is preempted afterwards or not.
OUR_HITS = "vllm_ascend:prefix_hit_tokens_sum"
# vLLM 0.20.2 and 0.23.0 note a request with its first token: for one that was preempted before
# that, what it had computed itself counts as a hit.
VLLMS_HITS = 'vllm:prompt_tokens_by_source_total{source="local_cache_hit"}'
# Not judged, but they tell why a hit rate changed. Those of ours exist with our metrics only.
OTHER_COUNTERS = (
    "vllm:num_preemptions_total",
    "vllm:external_prefix_cache_hits_total",
    "vllm_ascend:partial_hits_total",
    "vllm_ascend:kv_cache_evictions_total",
    "vllm_ascend:junction_misses_total",
    "vllm_ascend:lost_prompts_total",
    *OF_DRAFTS,
)
_WORDS = {
    **{hits: f"once per request, by {hits} of {PROMPT_TOKENS}" for hits in (OUR_HITS, VLLMS_HITS)},
    USAGE: f"once per request, by {USAGE} in the answers to a second load of the same shape",
    LOOK_UPS: f"once per look-up, by {LOOK_UPS}: a request that waits is looked up in every step",
}


def hit_counter(counters: Mapping[str, float]) -> str | None:
    """Return the counter of hit tokens that counts each request once; ``None`` without one."""
    if PROMPT_TOKENS not in counters:
        return None
    return next((name for name in (OUR_HITS, VLLMS_HITS) if name in counters), None)


def other_counters(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return by how much the counters grew that are reported beside the hits.

    Raises:
        ValueError: One went backwards.
    """
    names = [name for name in after if name in OTHER_COUNTERS or name.startswith(ACCEPTED_AT)]
    return {name: _grown(name, before, after) for name in names}


def counted_use(before: Mapping[str, float], after: Mapping[str, float]) -> CacheUse | None:
    """Return what the server's caches did between two readings of its counters.

    Returns:
        ``None`` if the server has no counters that count each request once.

    Raises:
        ValueError: A counter went backwards.
    """
    source = hit_counter(after)
    others = other_counters(before, after)
    if source is None:
        return None
    prompts, hits = (int(_grown(name, before, after)) for name in (PROMPT_TOKENS, source))
    return CacheUse(prompts, hits, others, source)


def _grown(name: str, before: Mapping[str, float], after: Mapping[str, float]) -> float:
    difference = after[name] - before.get(name, 0.0)
    if difference < 0:
        raise ValueError(f"{name} went backwards")
    return difference


def sources(step: Performance) -> list[str]:
    """Return how the hits of a step's loads were counted, each way once."""
    return list(dict.fromkeys(load.cache.source for load in step.loads))


def why_unknown(step: Performance) -> str:
    """Return why no hit rate of a step is known."""
    if step.hit_tokens is not None:
        return "the server counted no prompt tokens"
    return (
        "no answer says how many of its prompt tokens were cached (vLLM says it only with "
        "--enable-prompt-tokens-details, and only if there are any)"
    )


def in_words(step: Performance) -> str:
    """Return the same for a reader."""
    return "; ".join(_WORDS.get(source, source) for source in sources(step))
