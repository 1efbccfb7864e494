# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend prefix-curve``: how many shared prefixes a cache holds, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vllm_ascend.replay.commands import (
    Concurrency,
    Jobs,
    MaxModelLen,
    MaxNumBatchedTokens,
    MaxNumSeqs,
    Seed,
    Verify,
    bad_input_ends,
    end,
    load_workloads,
    make_job,
    make_report,
    prepare_files,
    run_jobs,
    say,
    say_what_went_wrong,
)
from vllm_ascend.replay.curve import PrefixCurve
from vllm_ascend.replay.job import CLOSED_LOOP, WorkloadSource
from vllm_ascend.replay.report import prefix_curve_png, print_prefix_curve, write_json
from vllm_ascend.replay.runner import no_interrupts
from vllm_ascend.replay.variants import BUILT_IN_NAMES, Variant, check_layout, parse_variant

GEMMA = str(Path(__file__).parent / "data" / "gemma-3-27b.json")
_PREFIXES = (15, 20, 25, 30, 40, 50, 60)
_VARIANTS = ("stock", "pinned", "retention-auto", "best")


def prefix_curve(
    prefixes: Annotated[
        list[int] | None,
        typer.Option(help="Number of prefixes, several times; by default 15 to 60.", min=1),
    ] = None,
    variant: Annotated[
        list[str] | None, typer.Option(help=f"As of replay: {', '.join(BUILT_IN_NAMES)}, ...")
    ] = None,
    layout: Annotated[
        str, typer.Option(help="A Hugging Face config.json; by default Gemma-3-27B's.")
    ] = GEMMA,
    block_size: Annotated[int, typer.Option(help="--block-size of the engine.", min=1)] = 16,
    kv_tokens: Annotated[
        int, typer.Option(help="What vLLM logs as 'GPU KV cache size', in tokens.", min=1)
    ] = 1_470_000,
    shared: Annotated[int, typer.Option(help="Tokens of a prefix.", min=1)] = 28_672,
    own: Annotated[int, typer.Option(help="Tokens of a prompt behind it.", min=1)] = 512,
    output: Annotated[int, typer.Option(help="Tokens of an answer.", min=1)] = 64,
    rounds: Annotated[int, typer.Option(help="How often each prefix is asked for.", min=2)] = 3,
    json: Annotated[Path, typer.Option(help="All results, to process.")] = Path(
        "replay-out/prefix-curve.json"
    ),
    png: Annotated[Path, typer.Option(help="The picture.")] = Path("replay-out/prefix-curve.png"),
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
        variants = _variants(variant or _VARIANTS, layout)
        numbers = sorted(set(prefixes or _PREFIXES))
        sources = {
            WorkloadSource(f"{number}x{rounds}:{shared}:{own}:{output}", seed, concurrency): number
            for number in numbers
        }
        workloads = load_workloads(sources, max_model_len=max_model_len)
        memory = _memory(layout, block_size, kv_tokens, max_num_batched_tokens, max_model_len)
        plan = [
            make_job(
                source,
                chosen,
                layout=layout,
                block_size=block_size,
                kv_memory_bytes=memory,
                arrivals=CLOSED_LOOP,
                cost_model=None,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                max_model_len=max_model_len,
                verify=verify,
            )
            for source in workloads
            for chosen in variants
        ]
        prepare_files((json, png))
        outcome = run_jobs(plan, jobs, workloads)
    with no_interrupts():
        report = make_report(workloads, outcome, seed=seed)
        num_prefixes = {source.source: number for source, number in sources.items()}
        curve = PrefixCurve(report, num_prefixes, rounds, kv_tokens)
        write_json(curve, json)
        prefix_curve_png(curve, png)
        print_prefix_curve(curve, Console(emoji=False))
        say_what_went_wrong(report)
        say("written:", f"{json}, {png}")
    end(report, outcome)


def _variants(texts: tuple[str, ...] | list[str], layout: str) -> list[Variant]:
    return [parse_variant(text, layout)[0] for text in texts]


def _memory(
    layout: str, block_size: int, kv_tokens: int, max_num_batched_tokens: int, max_model_len: int
) -> int:
    # Here, not above: the commands start without the seconds that importing vLLM takes.
    from vllm_ascend.replay.layouts import from_hf_config
    from vllm_ascend.replay.scheduler import SchedulerOptions, kv_memory_for
    from vllm_ascend.replay.trace import BadInputError

    options = SchedulerOptions(
        num_blocks=1, max_num_batched_tokens=max_num_batched_tokens, max_model_len=max_model_len
    )
    try:
        return kv_memory_for(from_hf_config(Path(layout), block_size), kv_tokens, options)
    except ValueError as error:
        raise BadInputError(str(error)) from error
