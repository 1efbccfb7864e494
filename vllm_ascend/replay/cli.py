# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend replay``: workloads, variants, and a report of what the cache did."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vllm_ascend.replay.commands import (
    GIB,
    Concurrency,
    Jobs,
    KvGib,
    MaxModelLen,
    MaxNumBatchedTokens,
    MaxNumSeqs,
    MaxOutputTokens,
    MaxRequests,
    Seed,
    Verify,
    bad_input_ends,
    load_workloads,
    make_job,
    make_report,
    run_jobs,
    say,
    write_and_end,
)
from vllm_ascend.replay.http.access import ApiKey, HttpAccess, Insecure
from vllm_ascend.replay.http.options import (
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
from vllm_ascend.replay.http.prompts import PromptShape
from vllm_ascend.replay.outputs import prepare_folder
from vllm_ascend.replay.report import print_report, summary_png, write_html, write_json
from vllm_ascend.replay.results import ReplayReport
from vllm_ascend.replay.runs.job import CLOSED_LOOP, TIMESTAMPS, CostModel, WorkloadSource
from vllm_ascend.replay.runs.runner import no_interrupts
from vllm_ascend.replay.trace import BadInputError
from vllm_ascend.replay.variants import (
    ASCEND_LAYOUT,
    BUILT_IN_NAMES,
    Variant,
    default_variants,
    parse_variant,
)


def replay(
    context: typer.Context,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            show_default="W1",
            help="chat, agentic or mix (models of real traffic; chat:REQUESTS for more or fewer "
            "than 1000); W1, W2, W3, W5, W5f; a Mooncake or token-id JSONL file (.gz too); or "
            "REQUESTS:INPUT:SHARED:OUTPUT (in tokens; SHARED may be a share: 90%); or "
            "PREFIXESxROUNDS:SHARED:OWN:OUTPUT (prefixes in turn). "
            "May be given several times.",
        ),
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            show_default="upstream-like, best; with another --layout stock, best",
            help=f"{', '.join(BUILT_IN_NAMES)}, or NAME:VARIABLE=VALUE,... (block_size=N too; "
            "behind a built-in name: on top of it); @LAYOUT at the end overrides the layout. "
            "May be given several times.",
        ),
    ] = None,
    layout: Annotated[
        str, typer.Option(help="dsv4-flash-a3, dsv4-flash-gpu, or a Hugging Face config.json.")
    ] = ASCEND_LAYOUT,
    block_size: Annotated[int, typer.Option(help="--block-size of the engine.")] = 128,
    mtp: Annotated[
        int, typer.Option(help="Draft tokens per step of the MTP layer; 0: no drafting.", min=0)
    ] = 0,
    kv_gib: KvGib = 16.0,
    out: Annotated[Path, typer.Option(help="Folder for report.json and report.html.")] = Path(
        "replay-out"
    ),
    png: Annotated[
        Path | None, typer.Option(help="Also write the summary picture.", show_default="none")
    ] = None,
    verify: Verify = False,
    arrivals: Annotated[
        str, typer.Option(help="closed (loop), or timestamps (of the trace, on a modelled clock).")
    ] = CLOSED_LOOP,
    concurrency: Concurrency = None,
    max_requests: MaxRequests = None,
    max_output_tokens: MaxOutputTokens = None,
    model_ttft: Annotated[
        bool, typer.Option(help="Model times to first token in a closed loop, too.")
    ] = False,
    step_ms: Annotated[float, typer.Option(help="Cost model: fixed time of a step.", min=0)] = 20.0,
    token_us: Annotated[
        float, typer.Option(help="Cost model: time per scheduled token.", min=0)
    ] = 60.0,
    seed: Seed = 0,
    max_num_seqs: MaxNumSeqs = 32,
    max_num_batched_tokens: MaxNumBatchedTokens = 8192,
    max_model_len: MaxModelLen = 135_000,
    jobs: Jobs = 2,
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

    With --url: send it to a server that runs, and report the hits that it tells.
    """
    sources = [
        WorkloadSource(name, seed, concurrency, max_requests, max_output_tokens)
        for name in workload or ["W1"]
    ]
    with bad_input_ends():
        arrivals = TIMESTAMPS if timestamps else arrivals
        if arrivals not in (CLOSED_LOOP, TIMESTAMPS):
            raise BadInputError(f"--arrivals {arrivals}: allowed are closed and timestamps")
        check_together(context, arrivals=arrivals)
    if url is not None:
        from vllm_ascend.replay.http.replay import replay_http  # costs the others nothing

        shape = PromptShape(
            vocab_size, seed, scale, max_prompt_tokens, max_requests, max_output_tokens
        )
        with bad_input_ends():
            access = HttpAccess.of(api_key, insecure=insecure)
        replay_http(
            sources,
            HttpOptions(url, model, shape, arrivals, speed, timeout, out, png, access),
        )
        return
    with bad_input_ends():
        cost_model = CostModel(step_ms, token_us) if model_ttft or arrivals == TIMESTAMPS else None
        workloads = load_workloads(
            sources,
            needs_arrivals=arrivals == TIMESTAMPS,
            max_model_len=max_model_len,
        )
        variants = _variants(variant or default_variants(layout), layout)
        plan = [
            make_job(
                source,
                chosen,
                layout=layout,
                block_size=block_size,
                num_speculative_tokens=mtp,
                kv_memory_bytes=int(kv_gib * GIB),
                arrivals=arrivals,
                cost_model=cost_model,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                max_model_len=max_model_len,
                verify=verify,
            )
            for source in workloads
            for chosen in variants
        ]
        prepare_folder(out, {"--png": png})
        outcome = run_jobs(plan, jobs, workloads)
    with no_interrupts():
        report = make_report(workloads, outcome, seed=seed, cost_model=cost_model)
        files = (out / "report.json", out / "report.html", png)
        write_and_end(report, files, partial(_write, report))


def _variants(texts: list[str], layout: str) -> list[Variant]:
    variants: dict[str, Variant] = {}
    for text in texts:
        variant, remark = parse_variant(text, layout)
        if remark:
            say("[yellow]note:[/]", remark)
        if variants.setdefault(variant.name, variant) != variant:
            raise BadInputError(f"--variant {variant.name} is given twice with different settings")
    return list(variants.values())


def _write(report: ReplayReport, json: Path, html: Path, png: Path | None) -> None:
    write_json(report, json)
    # Before the pictures, which take seconds.
    print_report(report, Console(emoji=False))
    write_html(report, html)
    if png is not None:
        summary_png(report, png)
