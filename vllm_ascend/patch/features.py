# SPDX-License-Identifier: Apache-2.0
"""The features that patches belong to: what their entries in the table have in common."""

from __future__ import annotations

from typing import Any

# What no vLLM is known to have, or to be about to have.
_OURS: dict[str, Any] = {"remove_when": "never", "skip_if_present": None}

# Selective retention and the scratch/cached split of the free queue.
RETENTION: dict[str, Any] = {
    "feature": "retention",
    "upstream": "vllm-project/vllm#43447",
    "remove_when": "vllm>=0.23",
}
# Blocks that can never serve a hit are not cached; part of the same feature.
BLOCK_MASK: dict[str, Any] = {**RETENTION, "upstream": "vllm-project/vllm#42258"}
# DeepSeek-V4's groups as Ascend lays them out.
ROW_LAYOUT: dict[str, Any] = {
    "feature": "dsv4-layout",
    "upstream": "vllm-project/vllm-ascend#10193",
    **_OURS,
}
# The configured block size in every process.
BLOCK_SIZE: dict[str, Any] = {**ROW_LAYOUT, "upstream": "vllm-project/vllm-ascend#14479"}
# What contradicts the model or the command line ends the process that the operator started.
EARLY_CHECK: dict[str, Any] = {
    "feature": "early-check",
    "upstream": "none: part of what this project promises for values that cannot be used",
    **_OURS,
}
# Not known upstream: part of what this project promises where retention is on.
UNWRITTEN: dict[str, Any] = {
    "feature": "retention-exactness",
    "upstream": "vllm-project/vllm#43447",
    **_OURS,
}
# What a request holds, told and asked for where any switch is on.
FOOTPRINT: dict[str, Any] = {
    "feature": "request-memory",
    "upstream": "none: part of what this project promises where any of its switches is on",
    **_OURS,
}
# Whose a block is.
ISOLATION: dict[str, Any] = {
    "feature": "isolation",
    "upstream": "none: part of what this project promises where any of its switches is on",
    **_OURS,
}
# What routers are told of the cache, and when.
KV_EVENTS: dict[str, Any] = {
    "feature": "kv-events",
    "upstream": "none: part of what this project promises where any of its switches is on",
    **_OURS,
}
# Hits that end inside a block take a private copy of it.
PARTIAL_HITS: dict[str, Any] = {
    "feature": "partial-hits",
    "upstream": "vllm-project/vllm-ascend#10193",
    "remove_when": "vllm>=0.33",
}
# What the cache did and holds, for Prometheus and the log.
METRICS: dict[str, Any] = {
    "feature": "metrics",
    "upstream": "none: part of this project",
    **_OURS,
}
# KV connectors beside several groups and partial hits.
CONNECTORS: dict[str, Any] = {
    "feature": "kv-connectors",
    "upstream": "none: vLLM 0.20.2 has it as a TODO",
    **_OURS,
}
# vllm-ascend's own connectors, in force over one of its checkouts.
UPSTREAM_CONNECTORS: dict[str, Any] = {
    **CONNECTORS,
    "upstream": "none: vllm-ascend has it so in releases/v0.20.2rc",
}
# DeepSeek-V4 on the CPU, to try and to prove what is served elsewhere.
DSV4_ON_CPU: dict[str, Any] = {
    "feature": "dsv4-on-cpu",
    "upstream": "none: vLLM has no DeepSeek-V4 for the CPU",
    **_OURS,
}
# What the NPU side of vllm-ascend needs for other block sizes than 128; over a checkout only.
CHECKOUT_BLOCK_SIZE: dict[str, Any] = {**ROW_LAYOUT, "feature": "checkout-block-size"}
# Block copies by vllm-ascend's runner, and what its schedulers must tell; over a checkout only.
CHECKOUT_CACHE: dict[str, Any] = {**ROW_LAYOUT, "feature": "checkout-cache"}
# vLLM's names for Ascend's spec classes, which vllm-ascend's modules read at run time.
CHECKOUT_SPECS: dict[str, Any] = {**ROW_LAYOUT, "feature": "checkout-specs"}
