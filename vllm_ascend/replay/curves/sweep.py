# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend sweep``: every setting that an operator can choose, as one table."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vllm_ascend.prefix_cache_config import DSV4_COMPRESSED_BLOCK_SIZES
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
    run_what_can_be_run,
    write_and_end,
)
from vllm_ascend.replay.curves.grid import UNSET, Grid, SweepReport
from vllm_ascend.replay.outputs import prepare_files
from vllm_ascend.replay.report import print_sweep, write_json, write_sweep_markdown
from vllm_ascend.replay.runs.job import CLOSED_LOOP, Job, WorkloadSource
from vllm_ascend.replay.runs.runner import no_interrupts
from vllm_ascend.replay.trace import Workload
from vllm_ascend.replay.variants import ASCEND_LAYOUT

# Of the models of traffic one: the others take hours.
_WORKLOADS = ("W1", "W2", "W3", "W5", "W5f", "chat")
_INTERVALS = (UNSET, "0", "auto", "4096")


def sweep(
    workload: Annotated[
        list[str] | None,
        typer.Option(help="As of replay, several times.", show_default="W1 to W5f and chat"),
    ] = None,
    block_size: Annotated[
        list[int] | None,
        typer.Option(help="32, 64 or 128, several times.", show_default="all"),
    ] = None,
    interval: Annotated[
        list[str] | None,
        typer.Option(
            help="Retention interval: unset, 0, auto or tokens, several times.",
            show_default=", ".join(_INTERVALS),
        ),
    ] = None,
    partial: Annotated[
        list[int] | None,
        typer.Option(help="Partial hits: 0 or 1, twice.", show_default="both"),
    ] = None,
    mtp: Annotated[
        list[int] | None,
        typer.Option(help="Draft tokens per step, several times.", min=0, show_default="0, 1"),
    ] = None,
    best: Annotated[bool, typer.Option(help="Add a column for the profile 'best'.")] = True,
    kv_gib: KvGib = 16.0,
    json: Annotated[Path, typer.Option(help="All results, to process.")] = Path(
        "replay-out/sweep.json"
    ),
    markdown: Annotated[
        Path | None,
        typer.Option(help="Also write the tables for a document.", show_default="none"),
    ] = None,
    verify: Verify = False,
    concurrency: Concurrency = None,
    max_requests: MaxRequests = None,
    max_output_tokens: MaxOutputTokens = None,
    seed: Seed = 0,
    max_num_seqs: MaxNumSeqs = 32,
    max_num_batched_tokens: MaxNumBatchedTokens = 8192,
    max_model_len: MaxModelLen = 135_000,
    jobs: Jobs = 2,
) -> None:
    """Replay traffic on every combination of settings, and print hit rates as tables."""
    with bad_input_ends():
        workloads = load_workloads(
            (
                WorkloadSource(name, seed, concurrency, max_requests, max_output_tokens)
                for name in workload or _WORKLOADS
            ),
            max_model_len=max_model_len,
        )
        grid = Grid.of(
            block_sizes=block_size or DSV4_COMPRESSED_BLOCK_SIZES,
            mtp=mtp or (0, 1),
            partial=partial or (0, 1),
            intervals=interval or _INTERVALS,
            best=best,
        )
        plan = _plan(
            grid,
            workloads,
            kv_memory_bytes=int(kv_gib * GIB),
            arrivals=CLOSED_LOOP,
            cost_model=None,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            verify=verify,
        )
        prepare_files({"--json": json, "--markdown": markdown})
        outcome, refused = run_what_can_be_run(plan, jobs, workloads)
    with no_interrupts():
        replay = make_report(workloads, outcome, seed=seed)
        # Whatever the workload is: what is refused is the combination of settings.
        refusals = {plan[index].variant: reason for index, reason in refused.items()}
        sweep_report = SweepReport(replay, grid, refusals)
        write_and_end(replay, (json, markdown), functools.partial(_write, sweep_report))


def _plan(grid: Grid, workloads: dict[WorkloadSource, Workload], **common) -> list[Job]:
    """Return the run of every cell on every workload.

    Raises:
        BadInputError: A value on an axis is not allowed by itself.
    """
    return [
        make_job(
            source,
            cell.variant(),
            layout=ASCEND_LAYOUT,
            block_size=cell.row.block_size,
            num_speculative_tokens=cell.row.num_speculative_tokens,
            **common,
        )
        for source in workloads
        for cell in grid.cells()
    ]


def _write(report: SweepReport, json: Path, markdown: Path | None) -> None:
    write_json(report, json)
    print_sweep(report, Console(emoji=False))
    if markdown is not None:
        write_sweep_markdown(report, markdown)
