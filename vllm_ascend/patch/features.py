# SPDX-License-Identifier: Apache-2.0
"""The features that patches belong to: what their entries in the table have in common."""

from __future__ import annotations

from typing import Any

# Fields of :class:`~vllm_ascend.patch.table.Patch`.
Entries = dict[str, Any]

_PROMISED = "none: part of what this project promises "

# Selective retention and the scratch/cached split of the free queue.
RETENTION: Entries = {
    "feature": "retention",
    "upstream": "vllm-project/vllm#43447",
    "remove_when": "vllm>=0.23",
}
# Blocks that can never serve a hit are not cached; part of the same feature.
BLOCK_MASK: Entries = {**RETENTION, "upstream": "vllm-project/vllm#42258"}
# DeepSeek-V4's groups as Ascend lays them out.
ROW_LAYOUT: Entries = {
    "feature": "dsv4-layout",
    "upstream": "vllm-project/vllm-ascend#10193",
    "remove_when": "vLLM's specs count stored rows apart from tokens, and a platform lays out "
    "their groups",
}
# The configured block size in every process.
BLOCK_SIZE: Entries = {**ROW_LAYOUT, "upstream": "vllm-project/vllm-ascend#14479"}
# What contradicts the model or the command line ends the process that the operator started.
EARLY_CHECK: Entries = {
    "feature": "early-check",
    "upstream": f"{_PROMISED}for values that cannot be used",
    "remove_when": "vLLM lets a plugin check the engine's arguments",
}
# Not known upstream: part of what this project promises where retention is on.
UNWRITTEN: Entries = {
    "feature": "retention-exactness",
    "upstream": "vllm-project/vllm#43447",
    "remove_when": "vLLM enters blocks once they are computed, not when they are scheduled",
}
# What a request holds, told and asked for where any switch is on.
FOOTPRINT: Entries = {
    "feature": "request-memory",
    "upstream": f"{_PROMISED}where any of its switches is on",
    "remove_when": "vLLM asks each group how many blocks a request holds at most",
}
# Whose a block is.
ISOLATION: Entries = {
    "feature": "isolation",
    "upstream": f"{_PROMISED}where any of its switches is on",
    "remove_when": "vLLM hashes a salt and an adapter's name under different keys",
}
# What routers are told of the cache, and when.
KV_EVENTS: Entries = {
    "feature": "kv-events",
    "upstream": f"{_PROMISED}where any of its switches is on",
    "remove_when": "vLLM tells of a reset in the order in which it happened",
}
# Hits that end inside a block take a private copy of it.
PARTIAL_HITS: Entries = {
    "feature": "partial-hits",
    "upstream": "vllm-project/vllm-ascend#10193",
    "remove_when": "vllm>=0.33",
    "skip_if_present": "vllm.v1.core.sched.output:SchedulerOutput.kv_cache_block_copies",
}
# What the cache did and holds, for Prometheus and the log.
METRICS: Entries = {
    "feature": "metrics",
    "upstream": "none: part of this project",
    "remove_when": "vLLM lets a plugin add scheduler statistics and metrics",
}
# KV connectors beside several groups and partial hits.
CONNECTORS: Entries = {
    "feature": "kv-connectors",
    "upstream": "none: vLLM 0.20.2 has it as a TODO",
    "remove_when": "vLLM handles failed loads of models with several KV cache groups",
}
# vllm-ascend's own connectors, in force over one of its checkouts.
UPSTREAM_CONNECTORS: Entries = {
    **CONNECTORS,
    "upstream": "none: vllm-ascend has it so in releases/v0.20.2rc",
    "remove_when": "vllm-ascend's connectors ask for the granule instead of assuming a block",
}
# DeepSeek-V4 on the CPU, to try and to prove what is served elsewhere.
DSV4_ON_CPU: Entries = {
    "feature": "dsv4-on-cpu",
    "upstream": "none: vLLM has no DeepSeek-V4 for the CPU",
    "remove_when": "vLLM runs DeepSeek-V4 on the CPU",
}
# What the NPU side of vllm-ascend needs for other block sizes than 128; over a checkout only.
CHECKOUT_BLOCK_SIZE: Entries = {
    **ROW_LAYOUT,
    "feature": "checkout-block-size",
    "remove_when": "vllm-ascend takes block sizes of 32 and 64 for DeepSeek-V4 itself",
}
# Block copies by vllm-ascend's runner, and what its schedulers must tell; over a checkout only.
CHECKOUT_CACHE: Entries = {
    **ROW_LAYOUT,
    "feature": "checkout-cache",
    "remove_when": "vllm-ascend's runner carries out vLLM's block copies itself",
}
# vLLM's names for Ascend's spec classes, which vllm-ascend's modules read at run time.
CHECKOUT_SPECS: Entries = {
    **ROW_LAYOUT,
    "feature": "checkout-specs",
    "remove_when": "vllm-ascend imports its spec classes from where it defines them",
}
