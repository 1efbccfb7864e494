# SPDX-License-Identifier: Apache-2.0
"""Which of the features a case and a request have."""

from __future__ import annotations

from tests.e2e.core.configurations import (
    DSV4,
    EVICTION,
    PARTIAL,
    PIN,
    PROFILE,
    RETENTION,
    SPARE,
    SPARSE,
)
from tests.soak.case import Case
from tests.soak.operations import IMAGE, Add
from vllm_ascend.core.checks.drafts import DSPARK


def features_of(case: Case) -> frozenset[str]:
    """What is on in every step of a case."""
    layout, options, switches = case.layout, case.options, case.environment
    kinds = {"sliding" if kind == "window" else kind for kind in layout.kinds}
    on = {f"layout: {layout.family}", options.policy, _retention(switches.get(RETENTION))}
    on |= {f"layers: {kind}" for kind in kinds}
    flags = {
        "layers: MTP": layout.mtp,
        "partial hits": PARTIAL in switches,
        "sparse state": SPARSE in switches,
        "spare tails": SPARE in switches,
        "protection of returning prompts": switches.get(EVICTION) == "protect",
        "pinning": PIN in switches,
        "profile best": PROFILE in switches,
        "everything unset": not (switches.keys() - {DSV4}),
        "prefix caching off": not options.enable_prefix_caching,
        "async scheduling": options.async_scheduling,
        "drafts": options.num_speculative_tokens > 0,
        "drafts of DSpark": options.draft_method == DSPARK,
        "async drafts": options.async_scheduling and options.num_speculative_tokens > 0,
        "KV events": options.enable_kv_cache_events,
    }
    if case.connection is not None:
        on.add(f"connector, {case.connection.policy}")
        flags["connector of whole blocks"] = not case.connection.knows_granules
    if case.tier is not None:
        on |= {f"tier: {case.tier.backend}"}
        flags |= {
            "tier of several engines": case.tier.num_engines > 1,
            "tier with a disk": case.tier.disk_gib > 0,
            "tier of two ranks": case.tier.num_ranks > 1,
            "tier that is late": case.tier.late > 0,
            "tier that fails": case.tier.failures > 0,
        }
    return frozenset(on | {name for name, is_on in flags.items() if is_on})


def _retention(value: str | None) -> str:
    known = {None: "unset", "0": "0", "auto": "auto"}
    return f"retention: {known.get(value, 'N')}"


def features_of_request(add: Add) -> frozenset[str]:
    """What is on in every step that computes tokens of a request."""
    flags = {
        "LoRA": add.lora,
        "cache salt": add.salt,
        "image": any(segment.kind == IMAGE for segment in add.prompt) and not add.embeds,
        "prompt embeddings": add.embeds,
        "prompt logprobs": add.prompt_logprobs and not add.pools,
        "embedding request": add.pools,
        "streaming session": add.resumable,
    }
    return frozenset(name for name, is_on in flags.items() if is_on)
