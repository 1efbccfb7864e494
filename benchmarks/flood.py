# SPDX-License-Identifier: Apache-2.0
"""How many tokens of unique prompts push the prefixes that others share out of the cache.

    python -m benchmarks.flood [--kv-gib 16] [--prefixes 60] [--flood 8192 65536 1048576]
    python -m benchmarks.flood --flood 8192 --between 1 2 4     # normal traffic goes on

Normal traffic asks three times in turn for each of a number of shared prefixes, every time with
another end. Then one client sends prompts that nobody ever sent, one after another, and nobody else
sends anything: the worst case, because every hit would make a prefix young again. After every few
prompts all prefixes are looked up, which moves nothing, and the hit rate that normal traffic would
have is noted. With ``--between`` normal traffic goes on in turn, and between two of its requests so
many prompts of the flood come: what it hits in two more rounds is counted.

One process per variant: the real scheduler on DeepSeek-V4-Flash's layout, no model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from vllm_ascend.prefix_cache_config import DSV4_COMPRESSED_BLOCK_SIZES, child_environment
from vllm_ascend.replay.commands import GIB, make_job
from vllm_ascend.replay.job import CLOSED_LOOP, Job, WorkloadSource
from vllm_ascend.replay.trace import BadInputError
from vllm_ascend.replay.variants import ASCEND_LAYOUT, parse_variant

VARIANTS = (
    "stock@dsv4-flash-gpu",
    "upstream-like",
    "retention-0",
    "retention-auto",
    "partial",
    "pinned",
    "best",
    "best+protect:VLLM_ASCEND_PREFIX_CACHE_PROFILE=best,VLLM_ASCEND_PROTECT_RETURNING=1",
    "best+pin:VLLM_ASCEND_PREFIX_CACHE_PROFILE=best,VLLM_PIN_SWA_TOKENS=1",
)
SHARED_TOKENS, OWN_TOKENS, ROUNDS = 28_672, 512, 3
_VOCABULARY = 100_000
_PROBES = 48
_FIRST_PROMPTS = 16  # each looked at: dense caching is empty behind a few
_PROGRESS, _RESULT, _REFUSAL = "@progress ", "@result ", "@refusal "
_err = Console(stderr=True, emoji=False)


@dataclass(frozen=True)
class Flood:
    """One client's prompts against what was cached before.

    Attributes:
        variant: Name of the variant.
        prompt_tokens: Of each prompt of the flood.
        num_blocks: Of the pool.
        points: (tokens of the flood so far, hit rate of normal traffic in percent).
    """

    variant: str
    block_size: int
    kv_gib: float
    prompt_tokens: int
    num_blocks: int
    points: list[tuple[int, float]]

    @property
    def before(self) -> float:
        """The hit rate without a flood."""
        return self.points[0][1]

    def tokens_until(self, share: float) -> int | None:
        """Return the tokens with which not more than a share of the hit rate is left."""
        left = (tokens for tokens, rate in self.points if rate <= share * self.before)
        return next(left, None) if self.before else None


@dataclass(frozen=True)
class Mixture:
    """Normal traffic that goes on among a client's prompts.

    Attributes:
        between: Prompts of the flood between two requests of normal traffic.
        hit_rate: What normal traffic hits, in percent.
    """

    variant: str
    block_size: int
    kv_gib: float
    prompt_tokens: int
    between: int
    hit_rate: float


# In the child process


def _tokens(*seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, _VOCABULARY, count).tolist()


def _prompt(prefix: int, visit: int) -> list[int]:
    return _tokens(0, prefix, count=SHARED_TOKENS) + _tokens(1, prefix, visit, count=OWN_TOKENS)


class _Traffic:
    """A scheduler, and who talks to it."""

    def __init__(self, job: Job, num_prefixes: int) -> None:
        from vllm_ascend.replay.child import build_job_scheduler
        from vllm_ascend.replay.worker import SamplingWorker

        self.scheduler = build_job_scheduler(job)
        self._worker = SamplingWorker(self.scheduler)
        self._num_prefixes = num_prefixes
        self._count = 0

    def warm(self) -> None:
        """Ask for all prefixes in turn, every time with another end."""
        for visit in range(ROUNDS):
            for prefix in range(self._num_prefixes):
                self.send(_prompt(prefix, visit))

    def send(self, prompt: list[int]) -> int:
        """Have one prompt answered with one token; return its hit in tokens."""
        self.scheduler.add_request(self._request(prompt))
        hit = 0
        while self.scheduler.requests:
            output = self.scheduler.schedule()
            # It starts behind its hit, in its first step; nobody preempts it.
            hit += sum(new.num_computed_tokens for new in output.scheduled_new_reqs)
            self.scheduler.update_from_output(output, self._worker.execute(output))
        return hit

    def hit_rate(self) -> float:
        """Return what normal traffic would hit now, in percent; nothing is moved by it."""
        hits = 0
        for prefix in range(self._num_prefixes):
            request = self._request(_prompt(prefix, ROUNDS))
            hits += self.scheduler.kv_cache_manager.get_computed_blocks(request)[1]
            self.scheduler.kv_cache_manager.free(request)
        return 100 * hits / (self._num_prefixes * (SHARED_TOKENS + OWN_TOKENS))

    def _request(self, prompt: list[int]) -> Any:
        from vllm_ascend.replay.scheduler import make_request

        self._count += 1
        return make_request(self.scheduler, str(self._count), prompt, 1)


def measure(job: Job, num_prefixes: int, prompt_tokens: int) -> Flood:
    """Flood until nothing is left to hit, and print how far it is."""
    traffic = _Traffic(job, num_prefixes)
    traffic.warm()
    num_blocks = traffic.scheduler.kv_cache_manager.block_pool.num_gpu_blocks
    # As many tokens as C4 blocks of the whole pool cover, twice: nothing old is left behind them.
    most = 2 * num_blocks * 4 * job.block_size
    points = [(0, traffic.hit_rate())]
    every = ceil(most // 2 / _PROBES / prompt_tokens)
    for number in count(1):
        if not points[-1][1] or (sent := number * prompt_tokens) > most:
            break
        traffic.send(_tokens(2, number, count=prompt_tokens))
        if number <= _FIRST_PROMPTS or number % every == 0:
            points.append((sent, traffic.hit_rate()))
            print(f"{_PROGRESS}{sent / most}", flush=True)
    return Flood(
        variant=job.variant,
        block_size=job.block_size,
        kv_gib=job.kv_memory_bytes / GIB,
        prompt_tokens=prompt_tokens,
        num_blocks=num_blocks,
        points=points,
    )


def mix(job: Job, num_prefixes: int, prompt_tokens: int, between: int) -> Mixture:
    """Let normal traffic go on for two rounds, and print how far it is."""
    traffic = _Traffic(job, num_prefixes)
    traffic.warm()
    hits, flood = 0, count()
    for number in range(2 * num_prefixes):
        for _ in range(between):
            traffic.send(_tokens(2, next(flood), count=prompt_tokens))
        visit, prefix = divmod(number, num_prefixes)
        hits += traffic.send(_prompt(prefix, ROUNDS + visit))
        print(f"{_PROGRESS}{number / (2 * num_prefixes)}", flush=True)
    return Mixture(
        variant=job.variant,
        block_size=job.block_size,
        kv_gib=job.kv_memory_bytes / GIB,
        prompt_tokens=prompt_tokens,
        between=between,
        hit_rate=100 * hits / (2 * num_prefixes * (SHARED_TOKENS + OWN_TOKENS)),
    )


def child() -> None:
    """Run the cells on standard input; print progress and results."""
    for line in sys.stdin:
        cell = json.loads(line)
        job = Job.from_json(json.dumps(cell["job"]))
        if job.patched:
            import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
        arguments = job, cell["prefixes"], cell["prompt_tokens"]
        between = cell["between"]
        try:
            result = measure(*arguments) if between is None else mix(*arguments, between)
        except BadInputError as error:
            print(f"{_REFUSAL}{error}", flush=True)
            return
        print(_RESULT + json.dumps(asdict(result)), flush=True)


# In the parent


def _job(text: str, block_size: int, kv_gib: float, max_model_len: int) -> Job:
    variant, _ = parse_variant(text, ASCEND_LAYOUT)
    return make_job(
        WorkloadSource("flood"),
        variant,
        layout=ASCEND_LAYOUT,
        block_size=block_size,
        kv_memory_bytes=int(kv_gib * GIB),
        arrivals=CLOSED_LOOP,
        cost_model=None,
        max_num_seqs=32,
        max_num_batched_tokens=8192,
        max_model_len=max_model_len,
        verify=False,
    )


def _run(
    job: Job, num_prefixes: int, lengths: Sequence[int], mixtures: Sequence[int]
) -> Iterator[dict[str, Any]]:
    cells = [
        {
            "job": asdict(job),
            "prefixes": num_prefixes,
            "prompt_tokens": length,
            "between": between,
        }
        for length in lengths
        for between in mixtures or [None]
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.flood", "--child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[1],
        env={**child_environment(job.environment), "VLLM_LOGGING_LEVEL": "ERROR"},
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("".join(json.dumps(cell) + "\n" for cell in cells))
    process.stdin.close()
    with _err.status(f"{job.variant}, block size {job.block_size} ...") as status:
        for line in process.stdout:
            if line.startswith(_PROGRESS):
                share = float(line.removeprefix(_PROGRESS))
                status.update(f"{job.variant}, block size {job.block_size}: {share:.0%}")
            elif line.startswith(_RESULT):
                yield json.loads(line.removeprefix(_RESULT))
            elif line.startswith(_REFUSAL):
                raise SystemExit(f"error: {line.removeprefix(_REFUSAL).rstrip()}")
    if process.wait():
        raise SystemExit(f"{job.variant}: its process ended with exit code {process.returncode}")


def print_floods(floods: Sequence[Flood], console: Console) -> None:
    """Print a row per variant and length of the flood's prompts."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("variant", "block", "GiB", "flood prompts", "before", "half at", "nothing at"):
        table.add_column(name, justify="left" if name == "variant" else "right", overflow="fold")
    for flood in floods:
        table.add_row(
            flood.variant,
            str(flood.block_size),
            f"{flood.kv_gib:g}",
            f"{flood.prompt_tokens:,}",
            f"{flood.before:.2f} %",
            *(_count(flood.tokens_until(share)) for share in (0.5, 0.0)),
        )
    console.print(table)


def print_mixtures(mixtures: Sequence[Mixture], console: Console) -> None:
    """Print a row per variant, and a column per strength of the flood."""
    strengths = sorted({mixture.between * mixture.prompt_tokens for mixture in mixtures})
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("variant", overflow="fold")
    for name in ("block", "GiB", *(f"{tokens:,}" for tokens in strengths)):
        table.add_column(name, justify="right", overflow="fold")
    rates: dict[tuple[str, int, float], dict[int, float]] = {}
    for m in mixtures:
        row = rates.setdefault((m.variant, m.block_size, m.kv_gib), {})
        row[m.between * m.prompt_tokens] = m.hit_rate
    for (variant, block_size, kv_gib), row in rates.items():
        cells = (f"{row[tokens]:.2f} %" for tokens in strengths)
        table.add_row(variant, str(block_size), f"{kv_gib:g}", *cells)
    console.print(table)


def _count(tokens: int | None) -> str:
    return "-" if tokens is None else f"{tokens:,}"


def flood_png(floods: Sequence[Flood], path: Path) -> None:
    """Draw the hit rate over the tokens of a flood of the shortest prompts, per block size."""
    import matplotlib
    from matplotlib.figure import Figure

    from vllm_ascend.replay.report.plots import STYLE, colours

    shortest = min(flood.prompt_tokens for flood in floods)
    lines = [flood for flood in floods if flood.prompt_tokens == shortest and flood.before]
    sizes = sorted({flood.block_size for flood in lines if _is_ours(flood)}, reverse=True)
    names = list(dict.fromkeys(flood.variant for flood in lines))
    looks = {
        name: {"color": colour, "linestyle": "--" if name.count("+") else "-"}
        for name, colour in zip(names, colours(len(names)), strict=True)
    }
    with matplotlib.rc_context({**STYLE, "font.size": 11}):
        figure = Figure(figsize=(9.6, 4.2), dpi=150, layout="constrained")
        panels = figure.subplots(1, len(sizes) or 1, sharey=True, squeeze=False)[0]
        for axes, size in zip(panels, sizes or [None], strict=True):
            for flood in lines:
                # What has another size altogether is drawn everywhere, to compare with.
                if flood.block_size == size or not _is_ours(flood):
                    tokens, rates = zip(*flood.points, strict=True)
                    look = {"linewidth": 2, "label": flood.variant, **looks[flood.variant]}
                    axes.plot([t / 1e6 for t in tokens], rates, **look)
            axes.set(xlabel="million tokens of the flood", ylim=(0, 104))
            axes.set_title(f"block size {size}", fontsize=10)
            axes.set_xlim(left=0)
        panels[0].set_ylabel("hit rate of normal traffic, %")
        handles = {line.get_label(): line for axes in panels for line in axes.get_lines()}
        figure.legend(
            handles.values(), handles, loc="outside upper left", ncols=4, frameon=False, fontsize=9
        )
        figure.savefig(path, format="png", metadata={"Software": None})


def _is_ours(flood: Flood) -> bool:
    return flood.block_size in DSV4_COMPRESSED_BLOCK_SIZES


def main() -> None:
    """Measure every cell, print the table, write JSON and the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", nargs="+", default=VARIANTS, help="as of replay")
    parser.add_argument("--block-size", type=int, nargs="+", default=[128, 32])
    parser.add_argument("--kv-gib", type=float, default=16)
    parser.add_argument("--prefixes", type=int, default=60)
    parser.add_argument("--flood", type=int, nargs="+", default=[8192, 65_536, 1_048_576])
    parser.add_argument(
        "--between", type=int, nargs="+", default=[], help="prompts between two normal requests"
    )
    parser.add_argument("--out", type=Path, default=Path("replay-out"))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child()
        return
    max_model_len = max(*args.flood, SHARED_TOKENS + OWN_TOKENS) + 16
    # Variants of one block size only come up once.
    jobs = dict.fromkeys(
        _job(text, size, args.kv_gib, max_model_len).to_json()
        for size in args.block_size
        for text in args.variant
    )
    args.out.mkdir(parents=True, exist_ok=True)
    results = []
    for job in map(Job.from_json, jobs):
        for result in _run(job, args.prefixes, args.flood, args.between):
            results.append(result)
            kind = "mixtures" if args.between else "floods"
            report = {"prefixes": args.prefixes, kind: results}
            (args.out / "flood.json").write_text(json.dumps(report, indent=1) + "\n")
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
    main()
