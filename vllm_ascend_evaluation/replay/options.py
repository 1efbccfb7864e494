# SPDX-License-Identifier: Apache-2.0
"""Options that several commands have, spelled and explained alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vllm_ascend.releases import describe_supported
from vllm_ascend_evaluation.replay.variants import BUILT_IN_NAMES, LAYOUTS

MAX_KV_GIB = 1_000_000
KvGib = Annotated[
    float, typer.Option(help="KV cache memory of one rank in GiB.", min=0.001, max=MAX_KV_GIB)
]
Release = Annotated[
    str | None,
    typer.Option(
        help=f"Refuse to run on another vLLM than this one ({describe_supported('or')}).",
        show_default="whichever runs",
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of generated prompts.", min=0)]
Concurrency = Annotated[
    int | None,
    typer.Option(help="Requests in flight.", min=1, show_default="the workload's own"),
]
MaxRequests = Annotated[
    int | None,
    typer.Option(
        *("--max-requests", "--requests"),
        help="Take only this many requests of each workload.",
        min=1,
        show_default="all",
    ),
]
MaxOutputTokens = Annotated[
    int | None,
    typer.Option(
        help="Cap of answers, and the length of those that have none.",
        min=1,
        show_default="no cap",
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        help="Folder of the model's tokenizer, for workloads that hold text.",
        metavar="FOLDER",
        show_default="none",
    ),
]
MaxNumSeqs = Annotated[int, typer.Option(help="As for vllm serve.", min=1)]
MaxNumBatchedTokens = Annotated[int, typer.Option(help="As for vllm serve.", min=1)]
# The longest that vLLM's configuration for the scheduler alone has.
MaxModelLen = Annotated[int, typer.Option(help="As for vllm serve.", min=1, max=1 << 21)]
Jobs = Annotated[int, typer.Option(help="Processes at a time.", min=1)]
Verify = Annotated[
    bool, typer.Option(help="Let the content oracle check every row that would be read.")
]
Mtp = Annotated[
    int, typer.Option(help="Short for --drafts mtp:N; 0: no drafting.", min=0, metavar="N")
]
Drafts = Annotated[
    str | None,
    typer.Option(
        help="Method and draft tokens per step: mtp:N, or dspark:N with a release that has it.",
        metavar="METHOD:N",
        show_default="none",
    ),
]
Eviction = Annotated[
    list[str] | None,
    typer.Option(
        help="Also run best with this eviction order: lru or protect (the profile's). The "
        "report then also has bounds: LRU, knowing what returns, and Belady. May be given several "
        "times.",
        show_default="none",
    ),
]
DataParallel = Annotated[
    int,
    typer.Option(
        help="Data-parallel ranks behind one front end, each with --kv-gib.", min=1, max=64
    ),
]
DpRouting = Annotated[
    str,
    typer.Option(help="Who chooses the rank: vllm (its own balancer) or cache."),
]
Json = Annotated[Path, typer.Option(help="All results, to process.")]
Png = Annotated[Path, typer.Option(help="The picture.")]
TierGib = Annotated[
    float | None,
    typer.Option(
        help="Host memory of a tier below the KV cache of each rank in GiB (docs/tier.md).",
        min=0.001,
        max=MAX_KV_GIB,
        show_default="no tier",
    ),
]
TierGibPerSecond = Annotated[
    float, typer.Option(help="How fast the tier is loaded from, in GiB/s.", min=0.001)
]
DiskGib = Annotated[
    float | None,
    typer.Option(
        help="What a disk below the tier holds in GiB (docs/tier.md). Times are modelled then.",
        min=0.001,
        max=MAX_KV_GIB,
        show_default="no disk",
    ),
]
DiskGibPerSecond = Annotated[
    float, typer.Option(help="How fast the disk is read and written, in GiB/s.", min=0.001)
]
RestartAt = Annotated[
    int | None,
    typer.Option(
        help="End the engine before this request and start it anew: what it has in memory is gone.",
        min=1,
        metavar="REQUEST",
        show_default="never",
    ),
]
Variants = Annotated[
    list[str] | None,
    typer.Option(
        show_default="upstream-like, best; with another --layout stock, best",
        help=f"{', '.join(BUILT_IN_NAMES)}, or NAME:VARIABLE=VALUE,... (block_size=N too; "
        "behind a built-in name: on top of it; otherwise --block-size); @LAYOUT at the end "
        "overrides the layout. May be given several times.",
    ),
]
Layout = Annotated[str, typer.Option(help=f"{', '.join(LAYOUTS)}, or a Hugging Face config.json.")]
StepMs = Annotated[float, typer.Option(help="Cost model: fixed time of a step.", min=0)]
TokenUs = Annotated[float, typer.Option(help="Cost model: time per scheduled token.", min=0)]
CostModelFile = Annotated[
    Path | None,
    typer.Option(
        "--cost-model",
        help="Cost model that calibrate fitted to a server, in place of --step-ms and --token-us.",
        metavar="FILE",
        show_default="none",
    ),
]
