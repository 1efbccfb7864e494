# SPDX-License-Identifier: Apache-2.0
"""What a tier stores for each hit token: UCM's rule and ours, over the real scheduler.

    python -m benchmarks.tier_rules agentic_coding.jsonl [--tier-gib 64 --tier-gib 256]

UCM's rule for DeepSeek-V4 on Ascend at block size 128, as its connector has it: rows of 512 tokens
and a tail at the end of each, of the prompt alone; a hit ends at one of them. A hit that brings no
more than 2,048 tokens is not loaded. Of a prompt that has no more than 2,048 tokens behind what the
KV cache has nothing is stored. Memory is the same for both, and the least recently used object
goes: UCM's own takes half for each kind, and the oldest goes.

Under UCM's rule the KV cache is vllm-ascend's own, or the profile ``best`` with whole state, which
has such tails to store.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks.children import Child, answer_all
from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.sources import WorkloadSource
from vllm_ascend_evaluation.replay.variants import ASCEND_LAYOUT

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from vllm_ascend.core.connectors.connector_rules import Answer
    from vllm_ascend.tier.progress import Progress, Tables

# github.com/ModelEngine-Group/unified-cache-management, ucm/integration/vllm/hma_connector.py at
# 04ad9662: hash_block_size, load_tokens_threshold.
_CHUNK_TOKENS, _LEAST_GAIN_TOKENS = 512, 2048
_DSV4 = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1"}
_BEST = _DSV4 | {"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
OURS, UCM = "ours", "UCM's"
# The rule, the KV cache above it, and what is set for that.
RUNS: tuple[tuple[str, str, dict[str, str]], ...] = (
    (UCM, "upstream-like", _DSV4),
    (UCM, "best, whole state", _BEST | {"VLLM_ASCEND_DSV4_SPARSE_STATE": "0"}),
    (OURS, "best", _BEST),
)


def store_every_chunk() -> None:
    """Have the tier store and load by UCM's rule, in this process."""
    from vllm_ascend.core.policy.boundaries import PromptBoundaries, align_down
    from vllm_ascend.tier import scheduler_side, store_orders
    from vllm_ascend.tier.tail_choice import KEPT, TailChoice

    class EveryChunk(TailChoice):
        """A tail at every boundary of a prompt's chunks."""

        def of_prompt(self, num_prompt_tokens: int, junction: int) -> PromptBoundaries:
            chunks = range(_CHUNK_TOKENS, num_prompt_tokens + 1, _CHUNK_TOKENS)
            nothing: frozenset[int] = frozenset()
            return PromptBoundaries(num_prompt_tokens, 0, nothing, frozenset(chunks), nothing)

        def kept(self, start: int, end: int, singled_out: Collection[int]) -> list[int]:
            first = align_down(start, _CHUNK_TOKENS) + _CHUNK_TOKENS
            return [b for b in range(first, end + 1, _CHUNK_TOKENS) if b in singled_out]

        def rolling(self, start: int, end: int, prompt: PromptBoundaries) -> tuple[int, int]:
            return KEPT, 0

        def spare(self, start: int, end: int, others: Collection[int]) -> list[tuple[int, int]]:
            return []

    class OfPrompts(store_orders.StoreOrders):
        """Rows of a prompt's whole chunks."""

        def _store(self, progress: Progress, end: int) -> int:
            of_prompt = align_down(progress.request.num_prompt_tokens, _CHUNK_TOKENS)
            return super()._store(progress, min(end, of_prompt))

    class GainsOfSomeSize(scheduler_side.TierScheduler):
        """Loads no hit that gains little, and stores nothing of a request that has little left."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.num_here: dict[str, int] = {}

        def look_up(self, request: Request, num_local: int) -> Answer:
            self.num_here[request.request_id] = align_down(num_local, _CHUNK_TOKENS)
            tokens, is_async = super().look_up(request, num_local)
            if tokens and self._is_little(request, num_local + tokens):
                self._hits.pop(request.request_id, None)
                return 0, False
            return tokens, is_async

        def admitted(self, request: Request, tables: Tables, num_external: int) -> None:
            super().admitted(request, tables, num_external)
            if self._is_little(request, request.num_tokens):
                self._stores.ended(request)

        def _is_little(self, request: Request, end: int) -> bool:
            return end <= self.num_here[request.request_id] + _LEAST_GAIN_TOKENS

    store_orders.TailChoice = EveryChunk  # type: ignore[misc]
    scheduler_side.StoreOrders = OfPrompts  # type: ignore[misc]
    from vllm_ascend.tier import connector

    connector.TierScheduler = GainsOfSomeSize  # type: ignore[misc]


def run(question: dict[str, Any]) -> dict[str, Any]:
    """Replay with one rule; return what came of it."""
    if question["rule"] == UCM:
        store_every_chunk()
    from vllm_ascend_evaluation.replay.runs.child import run_job
    from vllm_ascend_evaluation.replay.runs.job import CLOSED_LOOP, Job

    source = WorkloadSource(
        question["trace"], concurrency=32, max_requests=question["requests"], max_output_tokens=64
    )
    result = run_job(
        Job(
            variant=question["rule"],
            patched=True,
            environment={},
            layout=ASCEND_LAYOUT,
            block_size=128,
            kv_memory_bytes=int(question["kv_gib"] * (1 << 30)),
            workload=source,
            arrivals=CLOSED_LOOP,
            cost_model=None,
            max_num_seqs=32,
            max_num_batched_tokens=8192,
            max_model_len=135_168,  # the longest of coding agents below 131,072
            verify=False,
            tier_gib=question["tier_gib"],
        )
    )
    tier = result.tier
    assert tier is not None and not result.violations
    return {
        "prompt_tokens": result.prompt_tokens,
        "hit_tokens": result.hit_tokens,
        "tier_hit_tokens": tier.hit_tokens,
        "stored_bytes": tier.stored_bytes,
        "num_tails": tier.num_tails,
        "num_evicted": tier.num_evicted,
    }


def table_of(rows: list[dict[str, Any]]) -> Table:
    """Return what was found."""
    table = Table("rule", "KV cache", "tier, GiB", box=None)
    for name in ("hits, %", "of the tier", "stored, GB", "tails", "bytes per hit token", "evicted"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            *(row["rule"], row["cache"], f"{row['tier_gib']:g}"),
            f"{100 * row['hit_tokens'] / row['prompt_tokens']:.2f}",
            f"{100 * row['tier_hit_tokens'] / row['prompt_tokens']:.2f}",
            *(f"{row['stored_bytes'] / 1e9:,.0f}", f"{row['num_tails']:,}"),
            f"{row['stored_bytes'] / max(row['hit_tokens'], 1):,.0f}",
            f"{row['num_evicted']:,}",
        )
    return table


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", nargs="?", help="as replay's --workload takes it")
    parser.add_argument("--tier-gib", type=float, action="append", help="several times (64, 256)")
    parser.add_argument("--kv-gib", type=float, default=16.0)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        answer_all(run)
        return
    if options.trace is None:
        parser.error("which trace?")
    try:
        WorkloadSource(options.trace, max_requests=1).prepared()
    except BadInputError as error:
        parser.error(str(error))
    rows = []
    for gib in options.tier_gib or (64.0, 256.0):
        for rule, cache, environment in RUNS:
            question = {"rule": rule, "trace": options.trace, "tier_gib": gib}
            question |= {"kv_gib": options.kv_gib, "requests": options.requests}
            with Child("benchmarks.tier_rules", "--answer", environment=environment) as child:
                rows.append({**question, "cache": cache, **child.ask(question)})
            print(json.dumps(rows[-1]), flush=True)
    Console(width=120).print(table_of(rows))


if __name__ == "__main__":
    main()
