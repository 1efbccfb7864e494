# SPDX-License-Identifier: Apache-2.0
"""What varies, by name: a run of some size must have met all of it."""

from __future__ import annotations

from vllm_ascend.releases import running_release

HYBRID = "hybrid"
DSV4_STOCK = "dsv4-stock"
DSV4_ROWS = "dsv4-rows"
FLASH_A3 = "flash-a3"
FLASH_GPU = "flash-gpu"
FAMILIES = (HYBRID, DSV4_STOCK, DSV4_ROWS, FLASH_A3, FLASH_GPU)

LAYOUTS = (
    *(f"layout: {family}" for family in FAMILIES),
    *(f"layers: {kind}" for kind in ("full", "sliding", "chunked", "mamba", "compressed", "MTP")),
)
SWITCHES = (
    *(f"retention: {value}" for value in ("unset", "0", "auto", "N")),
    *("partial hits", "sparse state", "spare tails"),
    *("protection of returning prompts", "pinning", "profile best"),
    *("everything unset", "prefix caching off"),
)
SCHEDULING = (
    *("fcfs", "priority", "async scheduling", "drafts", "async drafts", "KV events"),
    *(("drafts of DSpark",) if running_release().has_dspark else ()),
    *("connector, recompute", "connector, fail", "connector of whole blocks"),
)
REQUESTS = (
    *("LoRA", "cache salt", "image", "prompt embeddings", "prompt logprobs", "embedding request"),
    "streaming session",
)
TIER = (
    *("tier: host", "tier: mooncake", "tier of several engines", "tier of two ranks"),
    *("tier that is late", "tier that fails", "tier with a disk"),
)
FEATURES = (*LAYOUTS, *SWITCHES, *SCHEDULING, *REQUESTS, *TIER)
