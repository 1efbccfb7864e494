# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend goodput``: the highest rate of requests at which a promise is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.command_line.ends import bad_input_ends, say
from vllm_ascend.command_line.interrupts import no_interrupts
from vllm_ascend_evaluation.replay.commands import (
    GIB,
    drafts_of,
    load_workloads,
    make_job,
    make_report,
    run_jobs,
    sources_of,
    variants_of,
    write_and_end,
)
from vllm_ascend_evaluation.replay.cost.options import cost_model_of
from vllm_ascend_evaluation.replay.curves.loads import GoodputReport, Load
from vllm_ascend_evaluation.replay.curves.setups import jobs_of, setups_of
from vllm_ascend_evaluation.replay.curves.speeds import SLOWEST, SpeedSearch
from vllm_ascend_evaluation.replay.options import (
    MAX_KV_GIB,
    CostModelFile,
    Drafts,
    Jobs,
    Json,
    KvGib,
    Layout,
    MaxModelLen,
    MaxNumBatchedTokens,
    MaxNumSeqs,
    MaxOutputTokens,
    MaxRequests,
    Mtp,
    Png,
    Seed,
    StepMs,
    TierGibPerSecond,
    Tokenizer,
    TokenUs,
    Variants,
)
from vllm_ascend_evaluation.replay.outputs import prepare_files
from vllm_ascend_evaluation.replay.report import goodput_png, print_goodput, write_json
from vllm_ascend_evaluation.replay.runs.job import (
    DEFAULT_TIER_GIB_PER_SECOND,
    TIMESTAMPS,
    VLLM_ROUTING,
    Job,
    RunSettings,
)
from vllm_ascend_evaluation.replay.runs.runner import Outcome
from vllm_ascend_evaluation.replay.slo import Slo
from vllm_ascend_evaluation.replay.variants import ASCEND_LAYOUT, default_variants

_WorkloadName = Annotated[str, typer.Option(help="As for replay, one, with timestamps.")]
_SloText = Annotated[
    str,
    typer.Option(
        "--slo",
        help="What is promised: time to first token, time per token behind it, or both.",
        metavar="ttft=5s,tpot=80ms",
    ),
]
_SloPercent = Annotated[float, typer.Option(help="To so many of all requests.")]
_SEVERAL = "May be given several times: a line for each."
_DataParallel = Annotated[
    list[int] | None,
    typer.Option(
        help=f"Data-parallel ranks behind one front end, each with --kv-gib. {_SEVERAL}",
        min=1,
        max=64,
        show_default="1",
    ),
]
_DpRouting = Annotated[
    list[str] | None,
    typer.Option(
        help=f"Who chooses the rank: vllm (its own balancer) or cache. {_SEVERAL}",
        show_default="vllm",
    ),
]
_TierGib = Annotated[
    list[float] | None,
    typer.Option(
        help=f"Host memory of a tier below each rank in GiB, 0 for none. {_SEVERAL}",
        min=0,
        max=MAX_KV_GIB,
        show_default="no tier",
    ),
]
_BlockSize = Annotated[int, typer.Option(help="--block-size of the engine.")]


def goodput(
    context: typer.Context,
    workload: _WorkloadName = "chat",
    variant: Variants = None,
    slo: _SloText = "ttft=5s",
    slo_percent: _SloPercent = 99.0,
    layout: Layout = ASCEND_LAYOUT,
    block_size: _BlockSize = 128,
    mtp: Mtp = 0,
    drafts: Drafts = None,
    kv_gib: KvGib = 16.0,
    tier_gib: _TierGib = None,
    tier_gib_per_second: TierGibPerSecond = DEFAULT_TIER_GIB_PER_SECOND,
    json: Json = Path("replay-out/goodput.json"),
    png: Png = Path("replay-out/goodput.png"),
    max_requests: MaxRequests = None,
    max_output_tokens: MaxOutputTokens = None,
    tokenizer: Tokenizer = None,
    step_ms: StepMs = 20.0,
    token_us: TokenUs = 60.0,
    cost_model: CostModelFile = None,
    seed: Seed = 0,
    max_num_seqs: MaxNumSeqs = 32,
    max_num_batched_tokens: MaxNumBatchedTokens = 8192,
    max_model_len: MaxModelLen = 135_000,
    jobs: Jobs = 2,
    data_parallel: _DataParallel = None,
    dp_routing: _DpRouting = None,
) -> None:
    """Find the highest rate of requests at which times to first token and per token are promised.

    Each variant replays the traffic at its timestamps, sped up or slowed down, by a cost model.
    """
    with bad_input_ends():
        promise = Slo.of(slo, slo_percent)
        sources = sources_of([workload], seed, None, max_requests, max_output_tokens, tokenizer)
        workloads = load_workloads(sources, max_model_len=max_model_len, needs_arrivals=True)
        (source,) = workloads
        if workloads[source].num_requests < 2:
            raise BadInputError(f"--workload {workload}: one request has no rate; give more")
        draft_method, num_drafts = drafts_of(drafts, mtp)
        settings = RunSettings(
            *(layout, max_num_seqs, max_num_batched_tokens, max_model_len, False),
            *(block_size, num_drafts, int(kv_gib * GIB), TIMESTAMPS),
            cost_model_of(context, variant),
            tier_gib_per_second=tier_gib_per_second,
            draft_method=draft_method,
            slo=promise,
        )
        chosen = variants_of(variant or default_variants(layout), layout)
        setups = setups_of(data_parallel or [1], dp_routing or [VLLM_ROUTING], tier_gib or [0.0])
        plan = [job for of in chosen for job in jobs_of(make_job(source, of, settings), setups)]
        prepare_files({"--json": json, "--png": png})
        outcome, loads = _search(plan, promise, lambda plan: run_jobs(plan, jobs, workloads))
        _check_can_be_kept(slo, promise, loads)
    with no_interrupts():
        report = make_report(
            workloads, outcome, seed=seed, cost_model=settings.cost_model, is_timed=True
        )
        write_and_end(report, (json, png), partial(_write, GoodputReport(report, promise, loads)))


def _search(
    plan: Sequence[Job], slo: Slo, run: Callable[[Sequence[Job]], Outcome]
) -> tuple[Outcome, dict[str, tuple[Load, ...]]]:
    """Run jobs, a variant each, at one speed after the other until their goodput is known.

    Returns:
        What came of all runs together, and the loads by variant.
    """
    searches = {job.variant: SpeedSearch() for job in plan}
    loads: dict[str, list[Load]] = {job.variant: [] for job in plan}
    whole = Outcome([], interrupted=False)
    found = True  # a run that ends early tells nothing, and would be asked for again
    while found and not whole.interrupted and not whole.failures:
        speeds = {name: speed for name, of in searches.items() if (speed := of.next_speed())}
        if not speeds:
            break
        if whole.results:  # the timestamps' own comes first
            say("speeds:", ", ".join(f"{name} {speed:.3g}" for name, speed in speeds.items()))
        outcome = run(
            [replace(job, speed=speeds[job.variant]) for job in plan if job.variant in speeds]
        )
        whole = Outcome(
            [*whole.results, *outcome.results], outcome.interrupted, tuple(outcome.failures)
        )
        ended = [result for result in outcome.results if result.complete]
        found = bool(ended)
        for result in ended:
            load = Load(speeds[result.variant], result)
            loads[result.variant].append(load)
            searches[result.variant].tell(load.speed, is_kept=load.keeps(slo))
    return whole, {
        name: tuple(sorted(of, key=lambda load: load.speed)) for name, of in loads.items()
    }


def _check_can_be_kept(text: str, slo: Slo, loads: Mapping[str, Sequence[Load]]) -> None:
    """Check that there is a load at which somebody is served as promised.

    Raises:
        BadInputError: There is none, however slowly requests come.
    """
    slowest = [of[0] for of in loads.values() if of and of[0].speed == SLOWEST]
    if len(slowest) < len(loads) or any(load.keeps(slo) for load in slowest):
        return
    served = ", ".join(f"{of.run.variant} {of.run.kept_percent:.2f} %" for of in slowest)
    raise BadInputError(
        f"--slo {text}: no variant keeps it at any load; of requests that come one by one are "
        f"served so: {served}"
    )


def _write(report: GoodputReport, json: Path, png: Path) -> None:
    write_json(report, json)
    print_goodput(report, Console(emoji=False))
    goodput_png(report, png)
