# SPDX-License-Identifier: Apache-2.0
"""What an engine tells at its start: what is in force, and settings that cannot help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vllm.v1.kv_cache_interface import KVCacheSpec

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
from vllm_ascend.prefix_cache_config import PrefixCacheConfig


@dataclass(frozen=True)
class PrefixCacheFacts:
    """What is in force.

    Attributes:
        specs: The spec of every KV cache group.
        config: The switches.
        num_blocks: Blocks in the pool.
        max_model_len: Tokens of the longest request.
        granule: The finest unit in which hits can be measured, in tokens.
        alignment: What hits are multiples of, in tokens.
        interval: Tokens between boundaries that are kept; ``None``: all of them are.
        changes_caching: A switch changes what is cached.
        has_connector: Blocks may come from a KV connector.
        max_num_batched_tokens: Tokens of one step.
        has_connector: Blocks may come from a KV connector, or go to one.
        connector_knows_granules: It copes with requests that start inside a block.
    """

    specs: Sequence[KVCacheSpec]
    config: PrefixCacheConfig
    num_blocks: int
    max_model_len: int
    granule: int
    alignment: int
    interval: int | None
    changes_caching: bool
    has_connector: bool
    max_num_batched_tokens: int
    connector_knows_granules: bool

    @property
    def keeps_to_whole_blocks(self) -> bool:
        """Whether a connector stands against hits that end inside a block."""
        return self.has_connector and not self.connector_knows_granules

    @property
    def capacity_tokens(self) -> int:
        """About how many tokens of prefixes fit into the pool, tails of boundaries not counted."""
        sizes = [tokens_per_block(spec) for spec in self.specs if is_downward_closed(spec)]
        blocks_per_token = sum(1 / size for size in sizes)
        return int(self.num_blocks / blocks_per_token) if sizes else 0


def summary(facts: PrefixCacheFacts) -> str:
    """Return one line: units, what is kept, in which order memory is given up, capacity."""
    return "; ".join(
        (
            f"granule {facts.granule:,}, hits are multiples of {facts.alignment:,} tokens, the "
            f"smallest {facts.alignment:,}",
            _kept(facts),
            f"given up in this order: {_tiers(facts)}",
            f"{facts.num_blocks:,} blocks hold about {facts.capacity_tokens:,} tokens of prefixes",
            f"groups (rows per block, tokens): {_groups(facts.specs)}",
        )
    )


def warnings(facts: PrefixCacheFacts) -> Iterator[str]:
    """Yield a sentence for every setting that cannot help with this model and these sizes."""
    config = facts.config
    if facts.alignment >= facts.max_model_len:
        yield (
            f"nothing can be hit: hits are multiples of {facts.alignment:,} tokens, and "
            f"max_model_len is {facts.max_model_len:,}{_finer(facts)}"
        )
    elif facts.alignment > facts.granule:
        yield f"prompts of up to {facts.alignment:,} tokens are never hit{_finer(facts)}"
    if config.partial_hits and facts.keeps_to_whole_blocks:
        yield (
            "VLLM_ASCEND_DSV4_PARTIAL_HITS has no effect: the KV connector is not known to cope "
            "with requests that start inside a block (its class has no knows_granules = True)"
        )
    elif config.partial_hits and not any(map(is_compressed, facts.specs)):
        yield from _without_effect(facts, "VLLM_ASCEND_DSV4_PARTIAL_HITS", "compressed layer")
    if config.partial_min_hit_tokens and not config.partial_hits:
        yield (
            "VLLM_ASCEND_DSV4_PARTIAL_MIN_HIT_TOKENS has no effect without "
            "VLLM_ASCEND_DSV4_PARTIAL_HITS=1"
        )
    if config.sparse_state and facts.has_connector:
        yield (
            "VLLM_ASCEND_DSV4_SPARSE_STATE has no effect with a KV connector, which may hand on "
            "any block"
        )
    elif config.sparse_state and not _has_sparse_state(facts.specs):
        yield from _without_effect(
            facts, "VLLM_ASCEND_DSV4_SPARSE_STATE", "compressor state in Ascend's layout"
        )
    if config.spare_tails and facts.interval is None:
        what = (
            "with pinning alone all others are spare"
            if config.pin_swa_tokens
            else "every tail is kept"
        )
        yield f"VLLM_ASCEND_SPARE_TAILS has no effect: without retention {what}"
    if config.protect_returning and not any(map(is_downward_closed, facts.specs)):
        yield (
            "VLLM_ASCEND_PROTECT_RETURNING has no effect: the model has no layer that keeps all "
            "its rows, so nothing tells how much of a prompt has come before"
        )
    yield from _pinning_warnings(facts)
    if facts.interval and facts.interval >= facts.max_model_len and config.retention != "auto":
        yield (
            f"VLLM_PREFIX_CACHE_RETENTION_INTERVAL={facts.interval} keeps no more than 0: "
            f"max_model_len is {facts.max_model_len:,}"
        )


def _pinning_warnings(facts: PrefixCacheFacts) -> Iterator[str]:
    config = facts.config
    setting = f"VLLM_PIN_MIN_DROP_SIZE={config.pin_min_drop_size}"
    if not config.pin_swa_tokens:
        if config.pin_min_drop_size != PrefixCacheConfig.pin_min_drop_size:
            yield f"{setting} has no effect without VLLM_PIN_SWA_TOKENS=1"
        return
    sizes = [tokens_per_block(spec) for spec in facts.specs if is_windowed(spec)]
    most = facts.max_num_batched_tokens // max(sizes)
    if most < config.pin_min_drop_size:
        yield (
            f"{setting}: nothing will be pinned, a step of {facts.max_num_batched_tokens:,} tokens "
            f"drops {most} of the largest window blocks at most"
        )


def _without_effect(facts: PrefixCacheFacts, variable: str, lacking: str) -> Iterator[str]:
    # The profile is meant for every model; only who names the variable himself expects something.
    if facts.config.profile != "best":
        yield f"{variable} has no effect: the model has no {lacking}"


def _finer(facts: PrefixCacheFacts) -> str:
    """Return what would make hits finer, if anything would."""
    if facts.keeps_to_whole_blocks or not any(map(is_compressed, facts.specs)):
        return ""
    return f" (VLLM_ASCEND_DSV4_PARTIAL_HITS=1: from {facts.granule:,} tokens on)"


def _kept(facts: PrefixCacheFacts) -> str:
    if not facts.changes_caching:
        return "everything is cached"
    if facts.interval is None and not facts.config.pin_swa_tokens:
        return "the tails of all boundaries are kept"
    every = f", every {facts.interval:,} tokens" if facts.interval else ""
    rest = (
        "all other tails stay while their memory is idle"
        if facts.config.spare_tails or facts.interval is None
        else "no other tail is: where requests leave a shared prefix elsewhere, the third one "
        "hits, not the second (VLLM_ASCEND_SPARE_TAILS=1 changes that)"
    )
    chunks = ", windows left by a whole chunk (pinned)" if facts.config.pin_swa_tokens else ""
    return f"kept are the ends of prompts and answers, junctions{every}{chunks}; {rest}"


def _tiers(facts: PrefixCacheFacts) -> str:
    if not facts.changes_caching:
        return "first freed, first reused"
    config = facts.config
    has_spares = config.spare_tails or (config.pin_swa_tokens and facts.interval is None)
    spare = ("spare tails",) if has_spares else ()
    returning = ("of returning prompts (up to half)",) if config.protect_returning else ()
    pinned = ("pinned (oldest first)",) if config.pin_swa_tokens else ()
    return ", ".join(("scratch", *spare, "cached (least recently used first)", *returning, *pinned))


def _groups(specs: Sequence[KVCacheSpec]) -> str:
    counts = Counter(map(_describe_group, specs))
    return ", ".join(f"{num} x {text}" if num > 1 else text for text, num in counts.items())


def _describe_group(spec: KVCacheSpec) -> str:
    spec = unpack_uniform(spec)
    rows, tokens = spec.block_size, tokens_per_block(spec)
    if is_compressed(spec):
        rows = rows if counts_rows(spec) else rows // compress_ratio(spec)
        return f"compressed {compress_ratio(spec)}:1 {rows} ({tokens:,})"
    if is_compressor_state(spec):
        return f"state {rows} ({tokens:,})"
    if is_windowed(spec):
        return f"window of {spec.sliding_window:,} {rows} ({tokens:,})"
    return f"{type(spec).__name__} {rows} ({tokens:,})"


def _has_sparse_state(specs: Sequence[KVCacheSpec]) -> bool:
    return any(map(is_compressor_state, specs)) and any(map(counts_rows, specs))
