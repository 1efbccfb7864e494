# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend prefix-curve``: how many shared prefixes a cache holds, as a picture."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vllm_ascend.command_line.ends import bad_input_ends
from vllm_ascend.command_line.interrupts import no_interrupts
from vllm_ascend_evaluation.replay.commands import (
    load_workloads,
    make_job,
    make_report,
    run_jobs,
    variants_of,
    write_and_end,
)
from vllm_ascend_evaluation.replay.curves.lines import PrefixCurve
from vllm_ascend_evaluation.replay.options import (
    Concurrency,
    Jobs,
    Json,
    MaxModelLen,
    MaxNumBatchedTokens,
    MaxNumSeqs,
    Png,
    Seed,
    Verify,
)
from vllm_ascend_evaluation.replay.outputs import prepare_files
from vllm_ascend_evaluation.replay.report import prefix_curve_png, print_prefix_curve, write_json
from vllm_ascend_evaluation.replay.runs.job import RunSettings
from vllm_ascend_evaluation.replay.sources import WorkloadSource
from vllm_ascend_evaluation.replay.variants import BUILT_IN_NAMES, check_layout

GEMMA = str(Path(__file__).parents[1] / "data" / "gemma-3-27b.json")
_PREFIXES = (15, 20, 25, 30, 40, 50, 60)
_VARIANTS = ("stock", "pinned", "retention-auto", "best")


_Prefixes = Annotated[
    list[int] | None,
    typer.Option(
        help="Number of prefixes, several times.",
        min=1,
        show_default=", ".join(map(str, _PREFIXES)),
    ),
]
_Variants = Annotated[
    list[str] | None,
    typer.Option(
        help=f"As for replay: {', '.join(BUILT_IN_NAMES)}, ...", show_default=", ".join(_VARIANTS)
    ),
]
_Layout = Annotated[
    str, typer.Option(help="A Hugging Face config.json.", show_default="Gemma-3-27B's")
]
_BlockSize = Annotated[int, typer.Option(help="--block-size of the engine.", min=1)]
_KvTokens = Annotated[
    int, typer.Option(help="What vLLM logs as 'GPU KV cache size', in tokens.", min=1)
]
_Shared = Annotated[int, typer.Option(help="Tokens of a prefix.", min=1)]
_Own = Annotated[int, typer.Option(help="Tokens of a prompt behind it.", min=1)]
_Output = Annotated[int, typer.Option(help="Tokens of an answer.", min=1)]
_Rounds = Annotated[int, typer.Option(help="How often each prefix is asked for.", min=2)]


def prefix_curve(
    prefixes: _Prefixes = None,
    variant: _Variants = None,
    layout: _Layout = GEMMA,
    block_size: _BlockSize = 16,
    kv_tokens: _KvTokens = 1_470_000,
    shared: _Shared = 28_672,
    own: _Own = 512,
    output: _Output = 64,
    rounds: _Rounds = 3,
    json: Json = Path("replay-out/prefix-curve.json"),
    png: Png = Path("replay-out/prefix-curve.png"),
    verify: Verify = False,
    concurrency: Concurrency = None,
    seed: Seed = 0,
    max_num_seqs: MaxNumSeqs = 32,
    max_num_batched_tokens: MaxNumBatchedTokens = 8192,
    max_model_len: MaxModelLen = 32_768,
    jobs: Jobs = 2,
) -> None:
    """Ask for long shared prefixes in turn and draw hit rate over their number."""
    with bad_input_ends():
        check_layout(layout)
        variants = variants_of(variant or _VARIANTS, layout)
        sources = {
            WorkloadSource(f"{number}x{rounds}:{shared}:{own}:{output}", seed, concurrency): number
            for number in sorted(set(prefixes or _PREFIXES))
        }
        workloads = load_workloads(sources, max_model_len=max_model_len)
        settings = RunSettings(
            layout=layout,
            block_size=block_size,
            kv_tokens=kv_tokens,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            verify=verify,
        )
        plan = [make_job(source, chosen, settings) for source in workloads for chosen in variants]
        prepare_files({"--json": json, "--png": png})
        outcome = run_jobs(plan, jobs, workloads)
    with no_interrupts():
        report = make_report(workloads, outcome, seed=seed)
        num_prefixes = {source.source: number for source, number in sources.items()}
        curve = PrefixCurve(report, num_prefixes, rounds, kv_tokens)
        write_and_end(report, (json, png), partial(_write, curve))


def _write(curve: PrefixCurve, json: Path, png: Path) -> None:
    write_json(curve, json)
    print_prefix_curve(curve, Console(emoji=False))
    prefix_curve_png(curve, png)
