# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend sweep``: every setting that an operator can choose, as one table."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vllm_ascend.command_line.ends import bad_input_ends
from vllm_ascend.command_line.interrupts import no_interrupts
from vllm_ascend.core.policy.switches import DSV4_COMPRESSED_BLOCK_SIZES
from vllm_ascend_evaluation.replay.commands import (
    GIB,
    load_workloads,
    make_job,
    make_report,
    run_what_can_be_run,
    sources_of,
    write_and_end,
)
from vllm_ascend_evaluation.replay.curves.grid import UNSET, Grid, Row, SweepReport
from vllm_ascend_evaluation.replay.options import (
    Concurrency,
    Jobs,
    Json,
    KvGib,
    MaxModelLen,
    MaxNumBatchedTokens,
    MaxNumSeqs,
    MaxOutputTokens,
    MaxRequests,
    Seed,
    Tokenizer,
    Verify,
)
from vllm_ascend_evaluation.replay.outputs import prepare_files
from vllm_ascend_evaluation.replay.report import print_sweep, write_json, write_sweep_markdown
from vllm_ascend_evaluation.replay.runs.job import Job, RunSettings
from vllm_ascend_evaluation.replay.sources import WorkloadSource
from vllm_ascend_evaluation.replay.variants import ASCEND_LAYOUT

# Of the models of traffic one: the others take hours.
_WORKLOADS = ("W1", "W2", "W3", "W5", "W5f", "chat")
_INTERVALS = (UNSET, "0", "auto", "4096")


_Workloads = Annotated[
    list[str] | None,
    typer.Option(
        help="As for replay; may be given several times.", show_default="W1 to W5f and chat"
    ),
]
_BlockSizes = Annotated[
    list[int] | None, typer.Option(help="32, 64 or 128, several times.", show_default="all")
]
_Intervals = Annotated[
    list[str] | None,
    typer.Option(
        help="Retention interval: unset, 0, auto or tokens, several times.",
        show_default=", ".join(_INTERVALS),
    ),
]
_Partial = Annotated[
    list[int] | None, typer.Option(help="Partial hits: 0 or 1, twice.", show_default="both")
]
_Mtp = Annotated[
    list[int] | None,
    typer.Option(help="Draft tokens per step, several times.", min=0, show_default="0, 1"),
]
_Best = Annotated[bool, typer.Option(help="Add a column for the profile 'best'.")]
_Markdown = Annotated[
    Path | None, typer.Option(help="Also write the tables for a document.", show_default="none")
]


def sweep(
    workload: _Workloads = None,
    block_size: _BlockSizes = None,
    interval: _Intervals = None,
    partial: _Partial = None,
    mtp: _Mtp = None,
    best: _Best = True,
    kv_gib: KvGib = 16.0,
    json: Json = Path("replay-out/sweep.json"),
    markdown: _Markdown = None,
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
) -> None:
    """Replay traffic on every combination of settings, and print hit rates as tables."""
    names = workload or _WORKLOADS
    with bad_input_ends():
        limits = (concurrency, max_requests, max_output_tokens)
        sources = sources_of(names, seed, *limits, tokenizer)
        workloads = load_workloads(sources, max_model_len=max_model_len)
        grid = Grid.of(
            block_sizes=block_size or DSV4_COMPRESSED_BLOCK_SIZES,
            mtp=mtp or (0, 1),
            partial=partial or (0, 1),
            intervals=interval or _INTERVALS,
            best=best,
        )
        settings = RunSettings(
            layout=ASCEND_LAYOUT,
            kv_memory_bytes=int(kv_gib * GIB),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            verify=verify,
        )
        plan = _plan(grid, workloads, settings)
        prepare_files({"--json": json, "--markdown": markdown})
        outcome, refused = run_what_can_be_run(plan, jobs, workloads)
    with no_interrupts():
        replay = make_report(workloads, outcome, seed=seed)
        # Whatever the workload is: what is refused is the combination of settings.
        refusals = {plan[index].variant: reason for index, reason in refused.items()}
        sweep_report = SweepReport(replay, grid, refusals)
        write_and_end(replay, (json, markdown), functools.partial(_write, sweep_report))


def _plan(grid: Grid, sources: Iterable[WorkloadSource], settings: RunSettings) -> list[Job]:
    """Return the run of every cell on every workload.

    Raises:
        BadInputError: A value on an axis is not allowed by itself.
    """

    def of(row: Row) -> RunSettings:
        drafts = row.num_speculative_tokens
        return replace(settings, block_size=row.block_size, num_speculative_tokens=drafts)

    return [
        make_job(source, cell.variant(), of(cell.row))
        for source in sources
        for cell in grid.cells()
    ]


def _write(report: SweepReport, json: Path, markdown: Path | None) -> None:
    write_json(report, json)
    print_sweep(report, Console(emoji=False))
    if markdown is not None:
        write_sweep_markdown(report, markdown)
