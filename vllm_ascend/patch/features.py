# SPDX-License-Identifier: Apache-2.0
"""The features that patches belong to: what their entries in the table have in common."""

from __future__ import annotations

from typing import Any

# Fields of :class:`~vllm_ascend.patch.table.Patch`.
Entries = dict[str, Any]
_PROMISED = "none: part of what this project promises "


def _entries(feature: str, upstream: str, remove_when: str) -> Entries:
    return {"feature": feature, "upstream": upstream, "remove_when": remove_when}


def _promised(feature: str, remove_when: str) -> Entries:
    return _entries(feature, f"{_PROMISED}where any of its switches is on", remove_when)


def _ascend_layout(feature: str, remove_when: str) -> Entries:
    return _entries(feature, "vllm-project/vllm-ascend#10193", remove_when)


# Selective retention and the scratch/cached split of the free queue.
RETENTION = _entries("retention", "vllm-project/vllm#43447", "vllm>=0.23")
# Finer hits, exactness and ranks take a coordinator of their own, whatever vLLM's own can do.
COORDINATOR = _promised(
    "coordinator", "vLLM lets a plugin choose the coordinator, and tells it of requests and drafts"
)
# Blocks that can never serve a hit are not cached; part of the same feature.
BLOCK_MASK = {**RETENTION, "upstream": "vllm-project/vllm#42258"}
# DeepSeek-V4's groups as Ascend lays them out.
ROW_LAYOUT = _ascend_layout(
    "dsv4-layout",
    "vLLM's specs count stored rows apart from tokens, and a platform lays out their groups",
)
# The configured block size in every process.
BLOCK_SIZE = {**ROW_LAYOUT, "upstream": "vllm-project/vllm-ascend#14479"}
# What contradicts the model or the command line ends the process that the operator started.
EARLY_CHECK = _entries(
    "early-check",
    f"{_PROMISED}for values that cannot be used",
    "vLLM lets a plugin check the engine's arguments",
)
# Hashes of streaming sessions name the tokens that the session goes on with.
SESSIONS = _entries(
    "sessions",
    "vllm-project/vllm#49449",
    "vLLM forgets the hashes of tokens that a session drops (0.33.0 does)",
)
# What a request holds, told and asked for where any switch is on.
FOOTPRINT = _promised(
    "request-memory", "vLLM asks each group how many blocks a request holds at most"
)
# Whose a block is.
ISOLATION = _promised("isolation", "vLLM hashes a salt and an adapter's name under different keys")
# What routers are told of the cache, and when.
KV_EVENTS = _promised("kv-events", "vLLM tells of a reset in the order in which it happened")
# Hits that end inside a block take a private copy of it.
PARTIAL_HITS = {
    **_ascend_layout("partial-hits", "vllm>=0.30"),
    "superseded_by": "vllm.v1.core.sched.output:SchedulerOutput.kv_cache_block_copies",
}
# What the cache did and holds, for Prometheus and the log.
METRICS = _entries(
    "metrics",
    "none: part of this project",
    "vLLM lets a plugin add scheduler statistics and metrics",
)
# Data-parallel ranks chosen by what they have cached.
DP_ROUTING = _entries(
    "dp-routing",
    "none: part of this project",
    "vLLM's front end lets a plugin choose the rank, and ranks tell it of their caches",
)
# KV connectors beside several groups and partial hits.
CONNECTORS = _entries(
    "kv-connectors",
    "none: vLLM 0.20.2 has it as a TODO",
    "vLLM handles failed loads of models with several KV cache groups",
)
# vllm-ascend's own connectors, in force over one of its checkouts.
UPSTREAM_CONNECTORS = _entries(
    CONNECTORS["feature"],
    "none: vllm-ascend has it so in releases/v0.20.2rc",
    "vllm-ascend's connectors ask for the granule instead of assuming a block",
)
# What the NPU side of vllm-ascend needs for other block sizes than 128; over a checkout only.
CHECKOUT_BLOCK_SIZE = _ascend_layout(
    "checkout-block-size", "vllm-ascend takes block sizes of 32 and 64 for DeepSeek-V4 itself"
)
# Block copies by vllm-ascend's runner, and what its schedulers must tell; over a checkout only.
CHECKOUT_CACHE = _ascend_layout(
    "checkout-cache", "vllm-ascend's runner carries out vLLM's block copies itself"
)
# vLLM's names for Ascend's spec classes, which vllm-ascend's modules read at run time.
CHECKOUT_SPECS = _ascend_layout(
    "checkout-specs", "vllm-ascend imports its spec classes from where it defines them"
)
