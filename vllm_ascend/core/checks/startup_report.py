# SPDX-License-Identifier: Apache-2.0
"""Describes at an engine's start the settings in force, and warns of those that cannot help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from vllm.v1.kv_cache_interface import KVCacheSpec

from vllm_ascend.core.admission.request_footprint import RequestFootprint
from vllm_ascend.core.connectors.connector_rules import TAKES_TAILS_ALONE
from vllm_ascend.core.layout.specs import (
    compress_ratio,
    counts_rows,
    is_compressed,
    is_compressor_state,
    is_downward_closed,
    is_windowed,
    tokens_per_block,
    unpack_uniform,
)
from vllm_ascend.core.plan.cache_plan import CachePlan
from vllm_ascend.core.policy.switches import PrefixCacheConfig
from vllm_ascend.core.policy.units import GroupId


def capacity_tokens(specs: Sequence[KVCacheSpec], num_blocks: int) -> int:
    """Return about how many tokens of prefixes fit into a pool, tails not counted."""
    sizes = [tokens_per_block(spec) for spec in specs if is_downward_closed(spec)]
    return int(num_blocks / sum(1 / size for size in sizes)) if sizes else 0


def summary(plan: CachePlan, num_blocks: int) -> str:
    """Return one line: units, what is kept, in which order memory is given up, capacity."""
    capacity = capacity_tokens(plan.specs, num_blocks)
    kinds = Counter(map(_describe_group, plan.specs))
    groups = [f"{num} x {text}" if num > 1 else text for text, num in kinds.items()]
    return "; ".join(
        (
            f"granule {plan.granule:,}, hits are multiples of {plan.alignment:,} tokens, the "
            f"smallest {plan.alignment:,}",
            _kept(plan),
            f"given up in this order: {_tiers(plan)}",
            f"{num_blocks:,} blocks hold about {capacity:,} tokens of prefixes",
            f"groups (rows per block, tokens): {', '.join(groups)}",
        )
    )


def warnings(plan: CachePlan) -> Iterator[str]:
    """Yield a sentence for every setting that cannot help with this model and these sizes."""
    config, lacks = plan.config, "has no effect: the model has no"
    # The profile is meant for every model; only who names a variable himself expects something.
    is_named = config.profile != "best"
    if plan.alignment >= plan.max_model_len:
        yield (
            f"nothing can be hit: hits are multiples of {plan.alignment:,} tokens, and "
            f"max_model_len is {plan.max_model_len:,}{_finer(plan)}"
        )
    elif plan.alignment > plan.granule:
        yield f"prompts of up to {plan.alignment:,} tokens are never hit{_finer(plan)}"
    if config.partial_hits and not plan.facts.hits_may_end_inside_blocks:
        yield (
            "VLLM_ASCEND_DSV4_PARTIAL_HITS has no effect: the KV connector is not known to cope "
            "with requests that start inside a block (its class has no knows_granules = True)"
        )
    elif config.partial_hits and is_named and not any(map(is_compressed, plan.specs)):
        yield f"VLLM_ASCEND_DSV4_PARTIAL_HITS {lacks} compressed layer"
    has_state = any(map(is_compressor_state, plan.specs))
    has_sparse_state = has_state and any(map(counts_rows, plan.specs))
    if cost := _cost_of_dense_state(plan):
        yield cost
    elif config.sparse_state and is_named and not has_sparse_state:
        yield f"VLLM_ASCEND_DSV4_SPARSE_STATE {lacks} compressor state in Ascend's layout"
    if config.spare_tails and plan.interval is None:
        pinned, kept = "with pinning alone all others are spare", "every tail is kept"
        what = pinned if config.pin_swa_tokens else kept
        yield f"VLLM_ASCEND_SPARE_TAILS has no effect: without retention {what}"
    protects = config.eviction == "protect" and is_named
    if protects and not any(map(is_downward_closed, plan.specs)):
        yield (
            "VLLM_ASCEND_EVICTION=protect has no effect: the model has no layer that keeps all "
            "its rows, so nothing tells how much of a prompt was sent before"
        )
    yield from _pinning_warnings(plan)
    if plan.interval and plan.interval >= plan.max_model_len and config.retention != "auto":
        yield (
            f"VLLM_PREFIX_CACHE_RETENTION_INTERVAL={plan.interval} keeps no more than 0: "
            f"max_model_len is {plan.max_model_len:,}"
        )


def _cost_of_dense_state(plan: CachePlan) -> str:
    """Return why a connector keeps compressor state from being sparse, and the cost; "" if none."""
    declared = (plan.facts.connector or frozenset()) | {TAKES_TAILS_ALONE}
    sparse = replace(plan, facts=replace(plan.facts, connector=declared))
    if not any(sparse.is_sparse(spec) > plan.is_sparse(spec) for spec in plan.specs):
        return ""
    now, then = (
        sum(
            RequestFootprint(each).blocks(GroupId(i)) or 0
            for i, spec in enumerate(plan.specs)
            if is_compressor_state(spec)
        )
        for each in (plan, sparse)
    )
    return (
        "VLLM_ASCEND_DSV4_SPARSE_STATE has no effect: the KV connector may hand on any block (its "
        f"class has no takes_tails_alone = True). A request holds up to {now:,} blocks of "
        f"compressor state instead of {then:,}: {now - then:,} blocks that would hold about "
        f"{capacity_tokens(plan.specs, now - then):,} tokens of prefixes"
    )


def _pinning_warnings(plan: CachePlan) -> Iterator[str]:
    config, setting = plan.config, f"VLLM_PIN_MIN_DROP_SIZE={plan.config.pin_min_drop_size}"
    if not config.pin_swa_tokens:
        if config.pin_min_drop_size != PrefixCacheConfig.pin_min_drop_size:
            yield f"{setting} has no effect without VLLM_PIN_SWA_TOKENS=1"
        return
    sizes = [tokens_per_block(spec) for spec in plan.specs if is_windowed(spec)]
    most = plan.max_num_batched_tokens // max(sizes)
    if most < config.pin_min_drop_size:
        yield (
            f"{setting}: nothing will be pinned, a step of {plan.max_num_batched_tokens:,} tokens "
            f"drops {most} of the largest window blocks at most"
        )


def _finer(plan: CachePlan) -> str:
    """Return what would make hits finer, if anything would."""
    if not (plan.facts.hits_may_end_inside_blocks and any(map(is_compressed, plan.specs))):
        return ""
    return f" (VLLM_ASCEND_DSV4_PARTIAL_HITS=1: from {plan.granule:,} tokens on)"


def _kept(plan: CachePlan) -> str:
    if plan.is_stock:
        return "everything is cached"
    if plan.interval is None and not plan.config.pin_swa_tokens:
        return "the tails of all boundaries are kept"
    every = f", every {plan.interval:,} tokens" if plan.interval else ""
    rest = (
        "all other tails stay while their memory is idle"
        if plan.config.spare_tails or plan.interval is None
        else "no other tail is: where requests leave a shared prefix elsewhere, the third one "
        "hits, not the second (VLLM_ASCEND_SPARE_TAILS=1 changes that)"
    )
    chunks = ", windows left by a whole chunk (pinned)" if plan.config.pin_swa_tokens else ""
    return f"kept are the ends of prompts and answers, junctions{every}{chunks}; {rest}"


def _tiers(plan: CachePlan) -> str:
    if plan.is_stock:
        return "first freed, first reused"
    config = plan.config
    spare = ("spare tails",) if config.spare_tails or plan.keeps_spares else ()
    protects = config.eviction == "protect"
    returning = ("of returning prompts (up to half)",) if protects else ()
    pinned = ("pinned (oldest first)",) if config.pin_swa_tokens else ()
    return ", ".join(("scratch", *spare, "cached (least recently used first)", *returning, *pinned))


def _describe_group(spec: KVCacheSpec) -> str:
    spec = unpack_uniform(spec)
    rows, kind = spec.block_size, type(spec).__name__
    if is_compressed(spec):
        kind = f"compressed {compress_ratio(spec)}:1"
        rows = rows if counts_rows(spec) else rows // compress_ratio(spec)
    elif is_compressor_state(spec):
        kind = "state"
    elif is_windowed(spec):
        kind = f"window of {spec.sliding_window:,}"
    return f"{kind} {rows} ({tokens_per_block(spec):,})"
