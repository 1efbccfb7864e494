# SPDX-License-Identifier: Apache-2.0
"""Memory of every process of a server over many requests, and what each of them leaves.

    python -m benchmarks.memory_over_requests [--requests 20000] [--clients 32] [--unset]
        [--out FOLDER]

A real `vllm serve` with a tiny DeepSeek-V4, every switch on, in a pool so small that it is turned
over many times. Prompts are unique or begin with one of a few documents, which are replaced now and
then; some clients hang up. The resident memory of the three processes is taken while it serves. A
line fitted over the second half says how many bytes a request leaves; the first half is for what
a server fills once (arenas, caches, pages of the KV cache). The exit code is 1 if that is more than
the limit in any process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.e2e.scraping import own_metrics
from tests.e2e.server.clients import ask, http_client, leave
from tests.e2e.server.processes import (
    API_SERVER,
    ENGINE_CORE,
    WORKER,
    processes_of,
    resident_bytes,
)
from tests.e2e.server.server import BEST, Server, serve
from vllm_ascend_evaluation.models.tiny.maker import VOCAB_SIZE, make_tiny_model
from vllm_ascend_evaluation.replay.outputs import prepare_files
from vllm_ascend_evaluation.replay.report.json_file import write_whole

_NUM_BLOCKS = 1000
# What one request may leave in a process, in bytes.
_LIMIT_BYTES = 256
# How far the memory of a process may drift although nothing stays: a worker's tensors come and go.
_DRIFT_BYTES = {API_SERVER: 512 << 10, ENGINE_CORE: 128 << 10, WORKER: 16 << 20}
_NUM_SAMPLES = 200
_MIB = 1 << 20


class Traffic:
    """Prompts of 1 to 499 tokens, two in three behind one of eight documents. Seeded."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._documents = [self._tokens(300) for _ in range(8)]

    def requests(self, count: int) -> Iterator[dict[str, Any]]:
        """Yield the bodies of requests; one in twenty has ``num_events``: its client hangs up."""
        rng = self._random
        for number in range(count):
            if number % 50 == 0:
                self._documents[rng.randrange(8)] = self._tokens(300)
            start = rng.choice(self._documents) if rng.random() < 2 / 3 else []
            body: dict[str, Any] = {
                "prompt": start + self._tokens(rng.randrange(1, 200)),
                "max_tokens": rng.randrange(1, 9),
                "stream": rng.random() < 0.5,
            }
            if rng.random() < 0.05:
                body |= {"stream": True, "max_tokens": 500, "num_events": rng.randrange(3)}
            yield body

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(16, VOCAB_SIZE) for _ in range(count)]


@dataclass
class Memory:
    """What was measured.

    Attributes:
        num_requests: Requests answered or abandoned when a sample was taken.
        resident: Resident bytes of each process at these samples.
        seconds: What it took.
    """

    num_requests: list[int] = field(default_factory=list)
    resident: dict[str, list[int]] = field(default_factory=dict)
    seconds: float = 0.0

    def bytes_per_request(self) -> dict[str, float]:
        """Return the slope of a line through the second half of the samples, by process."""
        half = len(self.num_requests) // 2
        return {
            name: statistics.linear_regression(self.num_requests[half:], values[half:]).slope
            for name, values in self.resident.items()
        }

    def limits(self) -> dict[str, float]:
        """Return the largest slopes that count as flat, by process; many requests tell best."""
        half = self.num_requests[-1] / 2
        return {name: _LIMIT_BYTES + drift / half for name, drift in _DRIFT_BYTES.items()}

    def is_flat(self) -> bool:
        """Whether no process grew by more than its limit."""
        slopes, limits = self.bytes_per_request(), self.limits()
        return all(slopes[name] < limit for name, limit in limits.items())


async def measure(server: Server, num_requests: int, num_clients: int, seed: int = 0) -> Memory:
    """Let clients send requests one after another, and take the memory of the server.

    Raises:
        RuntimeError: A request was not answered.
    """
    memory, processes = Memory(), processes_of(server)
    memory.resident = {name: [] for name in processes}
    every, started = max(num_requests // _NUM_SAMPLES, 1), time.monotonic()
    bodies, num_done = Traffic(seed).requests(num_requests), 0

    async def client() -> None:
        nonlocal num_done
        for body in bodies:
            if "num_events" in body:
                await leave(server, **body)
            elif (ending := await ask(http, server, **body)).error is not None:
                raise RuntimeError(f"status {ending.status}: {ending.error}")
            num_done += 1
            if num_done % every == 0:
                memory.num_requests.append(num_done)
                for name, value in resident_bytes(processes).items():
                    memory.resident[name].append(value)

    async with http_client() as http:
        await asyncio.gather(*(client() for _ in range(num_clients)))
    memory.seconds = time.monotonic() - started
    return memory


def show(memory: Memory, console: Console) -> None:
    """Print a row per process: its memory along the way and the slope."""
    half, total = len(memory.num_requests) // 2, memory.num_requests[-1]
    table = Table("MiB after requests", box=None)
    for place in (0, half, -1):
        table.add_column(f"{memory.num_requests[place]:,}", justify="right")
    table.add_column("bytes per request", justify="right")
    table.add_column("limit", justify="right")
    slopes, limits = memory.bytes_per_request(), memory.limits()
    for name, values in memory.resident.items():
        sizes = (f"{values[place] / _MIB:.1f}" for place in (0, half, -1))
        table.add_row(name, *sizes, f"{slopes[name]:+.0f}", f"{limits[name]:.0f}")
    console.print(table)
    console.print(f"{total:,} requests in {memory.seconds:.0f} s")


def memory_png(memory: Memory, path: Path) -> None:
    """Write the picture: resident memory of each process over the number of requests.

    Raises:
        OSError: The file cannot be written.
    """
    from vllm_ascend_evaluation.replay.report.colours import colours_of
    from vllm_ascend_evaluation.replay.report.figures import FAINT, picture

    with picture(path, height=3.6) as figure:
        axes = figure.subplots()
        slopes = memory.bytes_per_request()
        colours = colours_of(slopes)
        for name, values in memory.resident.items():
            label = f"{name}, {slopes[name]:+.0f} bytes per request"
            mib = [value / _MIB for value in values]
            axes.plot(memory.num_requests, mib, color=colours[name], linewidth=2, label=label)
        axes.axvline(memory.num_requests[len(memory.num_requests) // 2], color=FAINT, linewidth=1)
        axes.set(xlabel="requests", ylabel="resident memory, MiB", xlim=(0, None), ylim=(0, None))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=9)


def run(num_requests: int, num_clients: int, switches: dict[str, str], console: Console) -> Memory:
    """Start a server, measure, and tell how often its pool was turned over."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_tiny_model(folder / "model")
        options = ("--num-gpu-blocks-override", str(_NUM_BLOCKS), "--max-model-len", "1024")
        with serve(folder / "model", folder / "log", switches, *options) as server:
            memory = asyncio.run(measure(server, num_requests, num_clients))
            counted = own_metrics(server.get("/metrics"))
    taken = sum(count for key, count in counted.items() if "kv_cache_evictions_total" in key)
    if counted:
        console.print(
            f"{taken:,.0f} blocks with content were given up, the pool has {_NUM_BLOCKS:,}"
        )
    return memory


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=32, help="requests under way at once")
    parser.add_argument("--unset", action="store_true", help="leave every switch unset")
    parser.add_argument("--out", type=Path, help="folder for memory.json and memory.png")
    args = parser.parse_args()
    console = Console()
    switches = {} if args.unset else BEST
    if args.out is not None:  # before hours are spent
        prepare_files({"--out": args.out / "memory.json"})
    memory = run(args.requests, args.clients, switches, console)
    show(memory, console)
    if args.out is not None:
        content = {
            "switches": switches,
            "bytes_per_request": memory.bytes_per_request(),
            **asdict(memory),
        }
        write_whole(args.out / "memory.json", json.dumps(content, indent=1) + "\n")
        memory_png(memory, args.out / "memory.png")
    sys.exit(not memory.is_flat())


if __name__ == "__main__":
    main()
