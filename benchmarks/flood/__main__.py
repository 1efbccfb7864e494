# SPDX-License-Identifier: Apache-2.0
"""The command: a process per variant, tables, JSON and a picture."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

import benchmarks.flood
from benchmarks.children import Child, ChildError
from benchmarks.flood.report import flood_png, print_floods, print_mixtures
from benchmarks.flood.results import Flood, Mixture
from benchmarks.flood.traffic import (
    OWN_TOKENS,
    PROGRESS,
    ROUNDS,
    SHARED_TOKENS,
)
from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.commands import GIB, make_job
from vllm_ascend_evaluation.replay.outputs import partial_name, prepare_files
from vllm_ascend_evaluation.replay.report.json_file import write_whole
from vllm_ascend_evaluation.replay.runs.job import Job, RunSettings
from vllm_ascend_evaluation.replay.sources import WorkloadSource
from vllm_ascend_evaluation.replay.variants import ASCEND_LAYOUT, parse_variant

VARIANTS = (
    "stock@dsv4-flash-gpu",
    "upstream-like",
    "retention-0",
    "retention-auto",
    "partial",
    "pinned",
    "best",
    "best+lru:VLLM_ASCEND_PREFIX_CACHE_PROFILE=best,VLLM_ASCEND_EVICTION=lru",
    "best+pin:VLLM_ASCEND_PREFIX_CACHE_PROFILE=best,VLLM_PIN_SWA_TOKENS=1",
)
_err = Console(stderr=True, emoji=False)


def _job(text: str, block_size: int, kv_gib: float, max_model_len: int) -> Job:
    variant, _ = parse_variant(text, ASCEND_LAYOUT)
    settings = RunSettings(
        layout=ASCEND_LAYOUT,
        block_size=block_size,
        kv_memory_bytes=int(kv_gib * GIB),
        max_num_seqs=32,
        max_num_batched_tokens=8192,
        max_model_len=max_model_len,
        verify=False,
    )
    return make_job(WorkloadSource("flood"), variant, settings)


def _run(
    job: Job, num_prefixes: int, lengths: Sequence[int], mixtures: Sequence[int]
) -> Iterator[dict[str, Any]]:
    name = f"{job.variant}, block size {job.block_size}"
    with (
        _err.status(f"{name} ...") as status,
        Child("benchmarks.flood.traffic", environment=job.environment) as child,
    ):

        def show(line: str) -> None:
            if line.startswith(PROGRESS):
                status.update(f"{name}: {float(line.removeprefix(PROGRESS)):.0%}")

        for length, between in product(lengths, mixtures or [None]):
            question = {
                "job": asdict(job),
                "prefixes": num_prefixes,
                "prompt_tokens": length,
                "between": between,
            }
            try:
                answer = child.ask(question, show)
            except ChildError as error:
                raise SystemExit(f"{name}: {error}") from error
            if "refusal" in answer:
                raise BadInputError(answer["refusal"])
            yield answer["result"]


def main() -> None:
    """Measure every cell, print the table, write JSON and the picture."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.flood", description=benchmarks.flood.__doc__.splitlines()[0]
    )
    parser.add_argument("--variant", nargs="+", default=VARIANTS, help="as of replay")
    parser.add_argument("--block-size", type=int, nargs="+", default=[128, 32])
    parser.add_argument("--kv-gib", type=float, default=16)
    parser.add_argument("--prefixes", type=int, default=60)
    parser.add_argument("--flood", type=int, nargs="+", default=[8192, 65_536, 1_048_576])
    parser.add_argument(
        "--between", type=int, nargs="+", default=[], help="prompts between two normal requests"
    )
    parser.add_argument("--out", type=Path, default=Path("replay-out"))
    args = parser.parse_args()
    max_model_len = max(*args.flood, SHARED_TOKENS + OWN_TOKENS) + 16
    # Variants of one block size only come up once.
    jobs = dict.fromkeys(
        _job(text, size, args.kv_gib, max_model_len).to_json()
        for size in args.block_size
        for text in args.variant
    )
    file = args.out / "flood.json"
    partial = partial_name(file)
    prepare_files({"--out": file})
    results = []
    for job in map(Job.from_json, jobs):
        for result in _run(job, args.prefixes, args.flood, args.between):
            results.append(result)
            kind = "mixtures" if args.between else "floods"
            report = {"prefixes": args.prefixes, kind: results}
            # A finished one stays until this one is finished.
            write_whole(partial, json.dumps(report, indent=1) + "\n")
    partial.replace(file)
    console = Console(emoji=False)
    told = f"{args.prefixes} prefixes of {SHARED_TOKENS:,} tokens, asked for {ROUNDS} times; then "
    if args.between:
        told += "two more, among unique prompts. Hit rate by tokens of the flood between requests:"
        console.print(told, highlight=False)
        print_mixtures([Mixture(**result) for result in results], console)
        return
    floods = [Flood(**result) for result in results]
    flood_png(floods, args.out / "flood.png")
    told += "unique prompts alone. Hit rate of normal traffic, tokens of the flood:"
    console.print(told, highlight=False)
    print_floods(floods, console)


if __name__ == "__main__":
    try:
        main()
    except BadInputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
