# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend replay``: workloads, variants, and a report of what the cache did."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.command_line.ends import bad_input_ends
from vllm_ascend.command_line.interrupts import no_interrupts
from vllm_ascend.server_access.access import ApiKey, HttpAccess, Insecure
from vllm_ascend_evaluation.replay.commands import (
    GIB,
    check_release,
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
from vllm_ascend_evaluation.replay.http.options import (
    HttpOptions,
    MaxPromptTokens,
    Model,
    Scale,
    Speed,
    Timeout,
    Timestamps,
    Url,
    VocabSize,
    check_together,
)
from vllm_ascend_evaluation.replay.http.prompts import PromptShape
from vllm_ascend_evaluation.replay.options import (
    Concurrency,
    CostModelFile,
    DataParallel,
    DiskGib,
    DiskGibPerSecond,
    DpRouting,
    Drafts,
    Eviction,
    Jobs,
    KvGib,
    Layout,
    MaxModelLen,
    MaxNumBatchedTokens,
    MaxNumSeqs,
    MaxOutputTokens,
    MaxRequests,
    Mtp,
    Release,
    RestartAt,
    Seed,
    StepMs,
    TierGib,
    TierGibPerSecond,
    Tokenizer,
    TokenUs,
    Variants,
    Verify,
)
from vllm_ascend_evaluation.replay.outputs import prepare_folder
from vllm_ascend_evaluation.replay.report import print_report, summary_png, write_html, write_json
from vllm_ascend_evaluation.replay.results import ReplayReport
from vllm_ascend_evaluation.replay.runs.job import (
    CLOSED_LOOP,
    DEFAULT_DISK_GIB_PER_SECOND,
    DEFAULT_TIER_GIB_PER_SECOND,
    TIMESTAMPS,
    VLLM_ROUTING,
    RunSettings,
)
from vllm_ascend_evaluation.replay.runs.runner import Outcome
from vllm_ascend_evaluation.replay.sources import WorkloadSource
from vllm_ascend_evaluation.replay.trace import Workload
from vllm_ascend_evaluation.replay.variants import (
    ASCEND_LAYOUT,
    default_variants,
    with_evictions,
)

_Workloads = Annotated[
    list[str] | None,
    typer.Option(
        show_default="W1",
        help="chat, agentic or mix (models of real traffic; chat:REQUESTS for more or fewer "
        "than 1000); W1, W2, W3, W5, W5f; a file (.gz too): a Mooncake trace, token ids, or your "
        "own traffic, as OpenAI's messages or prompts, batch files, ShareGPT, or the log of vllm "
        "serve --enable-log-requests with VLLM_LOGGING_LEVEL=DEBUG; or "
        "REQUESTS:INPUT:SHARED:OUTPUT (in tokens; SHARED may be a share: 90%); or "
        "PREFIXESxROUNDS:SHARED:OWN:OUTPUT (prefixes in turn). "
        "May be given several times.",
    ),
]
_BlockSize = Annotated[int, typer.Option(help="--block-size of the engine.")]
_Out = Annotated[Path, typer.Option(help="Folder for report.json and report.html.")]
_SummaryPng = Annotated[
    Path | None, typer.Option(help="Also write the summary picture.", show_default="none")
]
_Arrivals = Annotated[
    str,
    typer.Option(
        help="closed (loop); timestamps (of the trace, on a modelled clock); poisson:RATE (at "
        "random, RATE requests per s, by --seed).",
        metavar="closed|timestamps|poisson:RATE",
    ),
]
_ModelTtft = Annotated[bool, typer.Option(help="Model times to first token in a closed loop, too.")]
_MemoryUse = Annotated[
    bool,
    typer.Option(
        "--memory-use",
        help="Also show what the KV cache's memory is for, which hits were lost to what, and the "
        "bounds in the memory that live requests leave.",
    ),
]


def replay(
    context: typer.Context,
    workload: _Workloads = None,
    variant: Variants = None,
    eviction: Eviction = None,
    layout: Layout = ASCEND_LAYOUT,
    block_size: _BlockSize = 128,
    mtp: Mtp = 0,
    drafts: Drafts = None,
    kv_gib: KvGib = 16.0,
    tier_gib: TierGib = None,
    tier_gib_per_second: TierGibPerSecond = DEFAULT_TIER_GIB_PER_SECOND,
    disk_gib: DiskGib = None,
    disk_gib_per_second: DiskGibPerSecond = DEFAULT_DISK_GIB_PER_SECOND,
    restart_at: RestartAt = None,
    out: _Out = Path("replay-out"),
    png: _SummaryPng = None,
    verify: Verify = False,
    release: Release = None,
    arrivals: _Arrivals = CLOSED_LOOP,
    concurrency: Concurrency = None,
    max_requests: MaxRequests = None,
    max_output_tokens: MaxOutputTokens = None,
    tokenizer: Tokenizer = None,
    model_ttft: _ModelTtft = False,
    memory_use: _MemoryUse = False,
    step_ms: StepMs = 20.0,
    token_us: TokenUs = 60.0,
    cost_model: CostModelFile = None,
    seed: Seed = 0,
    max_num_seqs: MaxNumSeqs = 32,
    max_num_batched_tokens: MaxNumBatchedTokens = 8192,
    max_model_len: MaxModelLen = 135_000,
    jobs: Jobs = 2,
    data_parallel: DataParallel = 1,
    dp_routing: DpRouting = VLLM_ROUTING,
    timestamps: Timestamps = False,
    url: Url = None,
    model: Model = None,
    vocab_size: VocabSize = 1000,
    speed: Speed = 1.0,
    max_prompt_tokens: MaxPromptTokens = None,
    scale: Scale = 1,
    timeout: Timeout = 600.0,
    api_key: ApiKey = None,
    insecure: Insecure = False,
) -> None:
    """Replay traffic through the real vLLM scheduler, without a model, and report cache hits.

    With --url: send it to a running server and report the hits that it counts.
    """
    with bad_input_ends():
        check_release(release)
    arrivals, rate = _checked_arrivals(context, arrivals, timestamps=timestamps)
    limits = (concurrency, max_requests, max_output_tokens)
    sources = sources_of(workload or ["W1"], seed, *limits, tokenizer, rate)
    if url is not None:
        shape = PromptShape(
            vocab_size, seed, scale, max_prompt_tokens, max_requests, max_output_tokens
        )
        server = partial(HttpOptions, url, model, shape, arrivals, speed, timeout, out, png)
        _send(sources, url, server, api_key, insecure=insecure)
        return
    with bad_input_ends():
        draft_method, num_drafts = drafts_of(drafts, mtp)
        of_steps = cost_model_of(context, variant)
    is_timed = (
        model_ttft or arrivals == TIMESTAMPS or disk_gib is not None or cost_model is not None
    )
    settings = RunSettings(
        *(layout, max_num_seqs, max_num_batched_tokens, max_model_len, verify),
        *(block_size, num_drafts, int(kv_gib * GIB), arrivals),
        of_steps if is_timed else None,
        num_ranks=data_parallel,
        dp_routing=dp_routing,
        tier_gib=tier_gib,
        tier_gib_per_second=tier_gib_per_second,
        draft_method=draft_method,
        speed=speed,
        watches_memory=memory_use,
        disk_gib=disk_gib,
        disk_gib_per_second=disk_gib_per_second,
        restart_at=restart_at,
    )
    with bad_input_ends():
        variants = with_evictions(variant or default_variants(layout), eviction or ())
    report_of = partial(
        make_report,
        seed=seed,
        cost_model=settings.cost_model,
        with_policies=bool(eviction),
        is_timed=arrivals == TIMESTAMPS,
    )
    _replay(sources, variants, settings, report_of, out=out, png=png, jobs=jobs)


def _checked_arrivals(
    context: typer.Context, text: str, *, timestamps: bool
) -> tuple[str, float | None]:
    """Return how requests come in, once the options fit it and each other.

    Returns:
        ``closed`` or ``timestamps``, and how many come per second at random; ``None``: at their
        own times.

    Raises:
        typer.Exit: They do not.
    """
    with bad_input_ends():
        arrivals, rate = _arrivals_of(text)
        if timestamps and rate is not None:
            raise BadInputError(f"--arrivals {text}: goes without --timestamps")
        arrivals = TIMESTAMPS if timestamps else arrivals
        check_together(context, arrivals=arrivals, is_random=rate is not None)
    return arrivals, rate


def _arrivals_of(text: str) -> tuple[str, float | None]:
    kind, _, rate = text.partition(":")
    if text in (CLOSED_LOOP, TIMESTAMPS):
        return text, None
    with contextlib.suppress(ValueError):
        if kind == "poisson" and 0 < float(rate) < math.inf:
            return TIMESTAMPS, float(rate)
    raise BadInputError(
        f"--arrivals {text}: allowed are closed, timestamps and poisson:RATE, RATE above 0 in "
        "requests per second"
    )


def _send(
    sources: list[WorkloadSource],
    url: str,
    server: Callable[[HttpAccess], HttpOptions],
    api_key: str | None,
    *,
    insecure: bool,
) -> None:
    """Send the workloads to a server that runs.

    Args:
        sources: The workloads.
        url: ``--url``.
        server: Which one, and how; is told how to be let in.
        api_key: ``--api-key``.
        insecure: ``--insecure``.

    Raises:
        typer.Exit: Something went wrong or was interrupted; carries the exit code.
    """
    from vllm_ascend_evaluation.replay.http.replay import replay_http  # costs the others nothing

    with bad_input_ends():
        access = HttpAccess.of(api_key, insecure=insecure, url=url)
    replay_http(sources, server(access))


def _replay(
    sources: list[WorkloadSource],
    variants: list[str],
    settings: RunSettings,
    report_of: Callable[[Mapping[WorkloadSource, Workload], Outcome], ReplayReport],
    *,
    out: Path,
    png: Path | None,
    jobs: int,
) -> None:
    """Run every workload on every variant, and report.

    Args:
        sources: The workloads.
        variants: As of ``--variant``.
        settings: Of all runs.
        report_of: Makes the report of what was run.
        out: ``--out``.
        png: ``--png``.
        jobs: Processes at a time.

    Raises:
        typer.Exit: Something is wrong or was interrupted; carries the exit code.
    """
    with bad_input_ends():
        workloads = load_workloads(
            sources,
            needs_arrivals=settings.arrivals == TIMESTAMPS,
            max_model_len=settings.max_model_len,
        )
        for loaded in workloads.values():
            _check_restart(settings.restart_at, loaded)
        parsed = variants_of(variants, settings.layout)
        plan = [make_job(source, chosen, settings) for source in workloads for chosen in parsed]
        prepare_folder(out, {"--png": png})
        outcome = run_jobs(plan, jobs, workloads)
    with no_interrupts():
        report = report_of(workloads, outcome)
        files = (out / "report.json", out / "report.html", png)
        write_and_end(report, files, partial(_write, report))


def _check_restart(restart_at: int | None, workload: Workload) -> None:
    """Check that there is a request before which the engine is to start anew.

    Raises:
        BadInputError: There is not.
    """
    if restart_at is not None and restart_at >= workload.num_requests:
        raise BadInputError(
            f"--restart-at {restart_at}: {workload.name} has {workload.num_requests:,} requests, "
            "the first of which is 0"
        )


def _write(report: ReplayReport, json: Path, html: Path, png: Path | None) -> None:
    write_json(report, json)
    # Before the pictures, which take seconds.
    print_report(report, Console(emoji=False))
    write_html(report, html)
    if png is not None:
        summary_png(report, png)
