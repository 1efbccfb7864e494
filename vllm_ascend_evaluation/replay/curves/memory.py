# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend memory-curve``: what more KV cache memory brings, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vllm_ascend.command_line.ends import bad_input_ends
from vllm_ascend.command_line.interrupts import no_interrupts
from vllm_ascend_evaluation.replay.commands import (
    GIB,
    drafts_of,
    load_workloads,
    make_job,
    make_report,
    run_what_can_be_run,
    sources_of,
    write_and_end,
)
from vllm_ascend_evaluation.replay.curves.lines import (
    BOUND_BLOCK_SIZE,
    MemoryCurve,
    Refusal,
    bytes_per_block,
    policy_lines,
    prefix_trace,
)
from vllm_ascend_evaluation.replay.options import (
    MAX_KV_GIB,
    Concurrency,
    DataParallel,
    DpRouting,
    Drafts,
    Eviction,
    Jobs,
    Json,
    MaxModelLen,
    MaxNumBatchedTokens,
    MaxNumSeqs,
    MaxOutputTokens,
    MaxRequests,
    Mtp,
    Png,
    Seed,
    TierGib,
    TierGibPerSecond,
    Tokenizer,
    Verify,
)
from vllm_ascend_evaluation.replay.outputs import prepare_files
from vllm_ascend_evaluation.replay.report import curve_png, print_curve, write_json
from vllm_ascend_evaluation.replay.results import ReplayReport
from vllm_ascend_evaluation.replay.runs.job import (
    DEFAULT_TIER_GIB_PER_SECOND,
    VLLM_ROUTING,
    Job,
    RunSettings,
)
from vllm_ascend_evaluation.replay.trace import Workload
from vllm_ascend_evaluation.replay.variants import (
    ASCEND_LAYOUT,
    PARTIAL,
    RETENTION,
    Variant,
    parse_variant,
    with_evictions,
    with_variables,
)

_KV_GIB = (4.0, 8.0, 16.0, 32.0, 64.0, 128.0)

_WorkloadName = Annotated[str, typer.Option(help="As for replay, one.")]
_KvGib = Annotated[
    list[float] | None,
    typer.Option(
        help="KV cache memory of one rank in GiB, several times.",
        show_default=", ".join(f"{gib:g}" for gib in _KV_GIB),
        min=0.001,
        max=MAX_KV_GIB,
    ),
]
_BlockSize = Annotated[int, typer.Option(help="--block-size of the engine: 32, 64 or 128.")]


def memory_curve(
    workload: _WorkloadName = "chat",
    kv_gib: _KvGib = None,
    block_size: _BlockSize = BOUND_BLOCK_SIZE,
    eviction: Eviction = None,
    mtp: Mtp = 0,
    drafts: Drafts = None,
    tier_gib: TierGib = None,
    tier_gib_per_second: TierGibPerSecond = DEFAULT_TIER_GIB_PER_SECOND,
    json: Json = Path("replay-out/memory-curve.json"),
    png: Png = Path("replay-out/memory-curve.png"),
    verify: Verify = False,
    concurrency: Concurrency = None,
    max_requests: MaxRequests = None,
    max_output_tokens: MaxOutputTokens = None,
    tokenizer: Tokenizer = None,
    seed: Seed = 0,
    max_num_seqs: MaxNumSeqs = 32,
    max_num_batched_tokens: MaxNumBatchedTokens = 8192,
    max_model_len: MaxModelLen = 135_000,
    jobs: Jobs = 2,
    data_parallel: DataParallel = 1,
    dp_routing: DpRouting = VLLM_ROUTING,
) -> None:
    """Draw hit rate over KV cache memory, beside LRU, the optimal policy and no limit at all."""
    with bad_input_ends():
        limits = (concurrency, max_requests, max_output_tokens)
        sources = sources_of([workload], seed, *limits, tokenizer)
        workloads = load_workloads(sources, max_model_len=max_model_len)
        (source,) = workloads
        draft_method, num_drafts = drafts_of(drafts, mtp)
        memories = sorted({int(gib * GIB) for gib in kv_gib or _KV_GIB})
        settings = RunSettings(
            layout=ASCEND_LAYOUT,
            block_size=block_size,
            num_speculative_tokens=num_drafts,
            draft_method=draft_method,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            verify=verify,
            tier_gib=tier_gib,
            tier_gib_per_second=tier_gib_per_second,
            num_ranks=data_parallel,
            dp_routing=dp_routing,
        )
        variants = _variants(eviction or ())
        plan = [
            make_job(source, variant, replace(settings, kv_memory_bytes=memory))
            for memory in memories
            for variant in variants
        ]
        prepare_files({"--json": json, "--png": png})
        outcome, refused = run_what_can_be_run(plan, jobs, workloads)
    with no_interrupts():
        report = make_report(workloads, outcome, seed=seed)
        write = partial(_write, report, workloads[source], memories, _refusals(plan, refused))
        write_and_end(report, (json, png), write)


def _refusals(plan: Sequence[Job], refused: Mapping[int, str]) -> tuple[Refusal, ...]:
    """Return the points that are missing.

    Args:
        plan: The runs.
        refused: Index of a run -> why it was refused.
    """
    return tuple(
        Refusal(plan[index].variant, plan[index].kv_memory_bytes, reason)
        for index, reason in sorted(refused.items())
    )


def _variants(evictions: Sequence[str]) -> list[Variant]:
    """Return the lines: as upstream, nothing special kept, and everything that we have.

    Raises:
        BadInputError: There is no such rule of eviction.
    """
    best = with_evictions(["best"], evictions)
    return [
        parse_variant("upstream-like", ASCEND_LAYOUT)[0],
        with_variables("interval 0, partial hits", {RETENTION: "0", PARTIAL: "1"}, ASCEND_LAYOUT),
        *(parse_variant(text, ASCEND_LAYOUT)[0] for text in best),
    ]


def _write(
    report: ReplayReport,
    workload: Workload,
    memories: Sequence[int],
    refusals: tuple[Refusal, ...],
    json: Path,
    png: Path,
) -> None:
    block_bytes = bytes_per_block(report.workloads[0].runs)
    bounds = policy_lines(prefix_trace(workload), memories, block_bytes)
    curve = MemoryCurve(report, block_bytes, bounds, refusals)
    write_json(curve, json)
    print_curve(curve, Console(emoji=False))
    curve_png(curve, png)
