# SPDX-License-Identifier: Apache-2.0
"""What one request costs the scheduler's thread, without a model: ours beside stock, in one run.

    python -m benchmarks.control_plane [--sizes 8192 131072 1048576] [--rounds 3] [--json FILE]

Every configuration runs in a process of its own; rounds alternate between them, and every figure
is a median. Times are those of calls that the scheduler makes: hashing a prompt, allocating and
caching it in chunks of 8,192 tokens, looking the whole of it up again, freeing it; and of
schedule() with running decodes.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vllm_ascend.prefix_cache_config import child_environment

REPOSITORY = Path(__file__).parents[1]
CHUNK_TOKENS = 8192
LOOK_UPS = 7
STEPS = 200
APPLY = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1"}
BEST = {**APPLY, "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
PHASES = ("hash", "allocate + cache", "look-up", "free")


@dataclass(frozen=True)
class Configuration:
    """One side of the comparison."""

    name: str
    block_size: int
    environment: dict[str, str] = field(default_factory=dict)
    layout: str = "a3"


CONFIGURATIONS = (
    Configuration("stock vLLM, GPU layout", 256, layout="gpu"),
    Configuration("as upstream, block 128", 128, APPLY),
    Configuration("as upstream, block 32", 32, APPLY),
    Configuration("best without spare tails, 128", 128, {**BEST, "VLLM_ASCEND_SPARE_TAILS": "0"}),
    Configuration("best, block 128", 128, BEST),
    Configuration("best, block 32", 32, BEST),
)


# The measuring process


def serve(configuration: Configuration) -> None:
    """Answer one JSON command per line of standard input, each with a line of JSON."""
    if configuration.environment:
        import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        answer = {"prefill": prefill, "decode": decode}[command](configuration, *arguments)
        print("ANSWER " + json.dumps(answer), flush=True)


def _scheduler(configuration: Configuration, **options):
    from vllm_ascend.replay.layouts import dsv4_flash_a3, dsv4_flash_gpu
    from vllm_ascend.replay.scheduler import SchedulerOptions, build_scheduler

    gpu = configuration.layout == "gpu"
    layout = dsv4_flash_gpu() if gpu else dsv4_flash_a3(configuration.block_size)
    return build_scheduler(layout, SchedulerOptions(num_blocks=60_000, **options))


def prefill(configuration: Configuration, num_tokens: int, seed: int) -> dict:
    """Serve one prompt and look it up again; return milliseconds by phase, and key bytes."""
    from vllm_ascend.replay.scheduler import make_request

    scheduler = _scheduler(configuration, max_model_len=1_100_000)
    manager = scheduler.kv_cache_manager
    rng = random.Random(seed)
    prompt = [rng.randrange(100_000) for _ in range(num_tokens)]
    request, again = (make_request(scheduler, name, prompt, 1) for name in ("first", "again"))
    # As in vLLM's EngineCore: what is there at the start is never looked at again.
    gc.collect()
    gc.freeze()
    times = dict.fromkeys(PHASES, 0.0)
    request.block_hashes.clear()
    start = time.perf_counter()
    request.update_block_hashes()
    times["hash"] = time.perf_counter() - start

    blocks, hit = manager.get_computed_blocks(request)
    assert hit == 0
    while request.num_computed_tokens < num_tokens:
        chunk = min(CHUNK_TOKENS, num_tokens - request.num_computed_tokens)
        manager.new_step_starts()
        start = time.perf_counter()
        given = manager.allocate_slots(request, chunk, 0, blocks)
        times["allocate + cache"] += time.perf_counter() - start
        assert given is not None
        request.num_computed_tokens += chunk
        blocks = None
    keys = sum(map(len, manager.block_pool.cached_block_hash_to_block._cache))
    manager.new_step_starts()
    granules = getattr(manager.block_pool, "granules", None)
    keys += granules.key_bytes() if granules is not None else 0
    start = time.perf_counter()
    manager.free(request)
    times["free"] = time.perf_counter() - start

    look_ups = []
    for _ in range(LOOK_UPS):
        start = time.perf_counter()
        manager.get_computed_blocks(again)
        look_ups.append(time.perf_counter() - start)
    times["look-up"] = statistics.median(look_ups)
    gc.unfreeze()
    return {**{phase: 1000 * seconds for phase, seconds in times.items()}, "key bytes": keys}


def decode(configuration: Configuration, num_requests: int) -> float:
    """Return the median of schedule() with running decodes, in microseconds."""
    from benchmarks.unset_overhead import timed_step
    from vllm_ascend.replay.scheduler import make_request

    scheduler = _scheduler(configuration, max_num_seqs=num_requests, max_model_len=100_000)
    for i in range(num_requests):
        prompt = [i * 1000 + token % 999 for token in range(1000)]
        scheduler.add_request(make_request(scheduler, f"r{i}", prompt, max_tokens=90_000))
    while any(r.num_computed_tokens < r.num_prompt_tokens for r in scheduler.requests.values()):
        timed_step(scheduler)
    gc.collect()
    gc.freeze()
    median = statistics.median(timed_step(scheduler) for _ in range(STEPS))
    gc.unfreeze()
    return 1e6 * median


# The comparing process


class Child:
    """A process that measures one configuration."""

    def __init__(self, configuration: Configuration) -> None:
        index = CONFIGURATIONS.index(configuration)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.control_plane", "--child", str(index)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=REPOSITORY,
            env={**child_environment(configuration.environment), "VLLM_LOGGING_LEVEL": "ERROR"},
        )

    def ask(self, *command):
        """Send a command; return the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("ANSWER "):
                return json.loads(line.removeprefix("ANSWER "))
        raise RuntimeError("the measuring process ended early")

    def end(self) -> None:
        """Let it go."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(sizes: list[int], requests: list[int], rounds: int, console: Console) -> dict:
    """Measure everything in turn; return all figures by configuration."""
    children = {c.name: Child(c) for c in CONFIGURATIONS}
    figures: dict[str, dict] = {name: {"prefill": {}, "decode": {}} for name in children}
    with console.status("measuring") as status:
        for round_ in range(rounds):
            for name, child in children.items():
                for size in sizes:
                    status.update(f"round {round_ + 1} of {rounds}: {name}, {size:,} tokens")
                    figures[name]["prefill"].setdefault(size, []).append(
                        child.ask("prefill", size, round_)
                    )
                for number in requests:
                    status.update(f"round {round_ + 1} of {rounds}: {name}, {number} decodes")
                    figures[name]["decode"].setdefault(number, []).append(
                        child.ask("decode", number)
                    )
    for child in children.values():
        child.end()
    return figures


def show(figures: dict, console: Console) -> None:
    """Print medians, and the ratio of schedule() to upstream's at the same block size."""
    for phase in (*PHASES, "key bytes"):
        table = Table(title=f"{phase}, {'bytes' if phase == 'key bytes' else 'ms'}", box=None)
        table.add_column("")
        sizes = list(next(iter(figures.values()))["prefill"])
        for size in sizes:
            table.add_column(f"{size:,} tokens", justify="right")
        for name, measured in figures.items():
            medians = [
                statistics.median(run[phase] for run in measured["prefill"][size]) for size in sizes
            ]
            digits = 0 if phase == "key bytes" else 3
            table.add_row(name, *(f"{median:,.{digits}f}" for median in medians))
        console.print(table, "")
    table = Table(title="schedule() p50, microseconds (ratio to upstream, same block)", box=None)
    table.add_column("")
    counts = list(next(iter(figures.values()))["decode"])
    for count in counts:
        table.add_column(f"{count} decodes", justify="right")
    for name, measured in figures.items():
        cells = []
        for count in counts:
            own = measured["decode"][count]
            block = "32" if name.endswith("32") else "128"
            base = figures[f"as upstream, block {block}"]["decode"][count]
            ratio = statistics.median(a / b for a, b in zip(own, base, strict=True))
            cells.append(f"{statistics.median(own):,.0f} ({ratio:.2f})")
        table.add_row(name, *cells)
    console.print(table)


def main() -> None:
    """Compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[8192, 131_072, 1_048_576])
    parser.add_argument("--decodes", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write every single figure there")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        serve(CONFIGURATIONS[args.child])
        return
    console = Console()
    figures = compare(args.sizes, args.decodes, args.rounds, console)
    show(figures, console)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
