# SPDX-License-Identifier: Apache-2.0
"""How far a replay's modelled seconds are from those of a real server, here and now.

    .venv/bin/python -m benchmarks.replay_seconds --out seconds.json
    .venv/bin/python -m benchmarks.replay_seconds --workload agentic:200 --variant best --minutes 3
    .venv/bin/python -m benchmarks.replay_seconds --gemma --scale 4

For each variant a tiny DeepSeek-V4, or Gemma-3, is served on the CPU. The same requests come
at random at several rates, to the server and to a replay with a cost model that was fitted right
before: times to first token side by side, and the rate at which a tenth of the requests waits
longer than promised. Nothing else should run: an engine takes one core, and its front end another.
"load" is the machine's load average right before; far above 1, other work is in what is measured.
"drift" is how far the fitted models of one variant are apart, in the time of a prompt of middle
length: a machine whose own speed changes by so much cannot be told more exactly.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from vllm_ascend.command_line.interrupts import termination_interrupts
from vllm_ascend_evaluation.replay.sources import WorkloadSource

_DSV4, _BEST = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1"}, {"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
# What `make serve` has, on top of what vLLM is; of Gemma, what vLLM is.
ENVIRONMENTS = {"upstream-like": _DSV4, "best": _DSV4 | _BEST}
GEMMA_ENVIRONMENTS: dict[str, dict[str, str]] = {"stock": {}, "best": _BEST}
_BLOCK_SIZE, _GEMMA_BLOCK_SIZE = 128, 32
MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, MAX_MODEL_LEN = 32, 2048, 32_768
PERCENTILES = ("p50", "p90")
_START_S, _STOP_S = 900, 60
# Requests per second at which nobody waits for others.
_QUIET = 0.02


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_AsWritten)
    parser.add_argument("--workload", default="chat:200", help="as for replay (default: chat:200)")
    parser.add_argument(
        "--variant",
        action="append",
        choices=ENVIRONMENTS | GEMMA_ENVIRONMENTS,
        help="several times (default: upstream-like and best; with --gemma stock and best)",
    )
    parser.add_argument(
        "--gemma", action="store_true", help="a tiny Gemma-3 instead, in blocks of 32 tokens"
    )
    parser.add_argument("--scale", type=int, default=8, help="one of so many tokens of prompts (8)")
    parser.add_argument(
        "--max-prompt-tokens", type=int, default=1024, help="longer are left out (1024)"
    )
    parser.add_argument("--max-output-tokens", type=int, default=16, help="cap of answers (16)")
    parser.add_argument("--minutes", type=float, default=0.5, help="of each calibration (0.5)")
    parser.add_argument(
        "--concurrency", type=int, default=MAX_NUM_SEQS, help=f"of a calibration ({MAX_NUM_SEQS})"
    )
    parser.add_argument("--rates", type=int, default=4, help="rates that are compared (4)")
    parser.add_argument("--ranks", type=int, default=1, help="--data-parallel-size (1)")
    parser.add_argument(
        "--ttft-ms", type=float, help="promised to 90 %% (twice what they have unloaded)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of prompts and arrivals (0)")
    parser.add_argument("--folder", type=Path, default=Path("seconds-out"), help="of all files")
    parser.add_argument("--out", type=Path, default=Path("seconds.json"), help="results")
    return parser.parse_args()


def environments(options: argparse.Namespace) -> dict[str, dict[str, str]]:
    """Return what is set for each variant."""
    return GEMMA_ENVIRONMENTS if options.gemma else ENVIRONMENTS


def model_of(options: argparse.Namespace) -> Path:
    """Return the folder of what is served."""
    return options.folder / ("tiny-gemma" if options.gemma else "tiny-dsv4")


def make_model(options: argparse.Namespace) -> None:
    """Make what is served, if it is not there."""
    if (model_of(options) / "config.json").exists():
        return
    if not options.gemma:
        command("tiny-model", model_of(options))
        return
    from vllm_ascend_evaluation.models.tiny.gemma import make_tiny_gemma

    make_tiny_gemma(model_of(options))


def block_size_of(options: argparse.Namespace) -> int:
    """Return the tokens of a block."""
    return _GEMMA_BLOCK_SIZE if options.gemma else _BLOCK_SIZE


def layout_of(options: argparse.Namespace) -> list[str]:
    """Return how a replay is told of the model, if it is another one."""
    return ["--layout", str(model_of(options) / "config.json")] if options.gemma else []


class _AsWritten(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the description."""


def write_traffic(options: argparse.Namespace) -> tuple[Path, int]:
    """Write the requests that server and replay get alike; return the file and their number."""
    path = options.folder / "traffic.jsonl"
    rows = []
    for request in WorkloadSource(options.workload, options.seed).load().requests():
        prompt = request.prompt_token_ids[:: options.scale]
        if len(prompt) <= options.max_prompt_tokens:
            length = min(request.output_tokens, options.max_output_tokens)
            rows.append(json.dumps({"prompt_token_ids": prompt, "output_length": length}))
    path.write_text("\n".join(rows) + "\n")
    return path, len(rows)


def command(*parts: object) -> None:
    """Run one of the project's commands; its output goes to a log.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    subprocess.run([sys.executable, "-m", "vllm_ascend", *map(str, parts)], check=True)


@contextlib.contextmanager
def served(variant: str, options: argparse.Namespace) -> Iterator[str]:
    """Serve the model; give the address.

    Raises:
        RuntimeError: It ended, or did not begin in time.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_ASCEND_")}
    environment |= {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    environment |= environments(options)[variant]
    # Ranks get cores of their own also where all cores are one NUMA node.
    environment |= {"VLLM_CPU_SIM_MULTI_NUMA": "1"} if options.ranks > 1 else {}
    vllm = Path(sys.executable).with_name("vllm")
    call: list[object] = [sys.executable, vllm, "serve", model_of(options), "--dtype", "float32"]
    call += ["--block-size", block_size_of(options), "--enforce-eager"]
    call += ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
    call += ["--max-model-len", MAX_MODEL_LEN, "--max-num-seqs", MAX_NUM_SEQS]
    call += ["--max-num-batched-tokens", MAX_NUM_BATCHED_TOKENS, "--host", "127.0.0.1"]
    call += ["--port", port, "--data-parallel-size", options.ranks]
    log = options.folder / f"{variant}.log"
    with log.open("w") as to:
        server = subprocess.Popen(
            list(map(str, call)), env=environment, stdout=to, stderr=subprocess.STDOUT
        )
    try:
        _wait_until_ready(server, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        try:
            server.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()


def _wait_until_ready(server: subprocess.Popen[bytes], health: str, log: Path) -> None:
    ends = time.monotonic() + _START_S
    while time.monotonic() < ends:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended; see {log}")
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(health, trust_env=False).is_success:
                return
        time.sleep(1)
    raise RuntimeError(f"the server did not begin within {_START_S} s; see {log}")


def times_of(folder: Path, field: str) -> dict[str, Any]:
    """Return the hits and the times to first token, a field, of the only run of a report."""
    (workload,) = json.loads((folder / "report.json").read_text())["workloads"]
    (run,) = workload["runs"]
    return {**{p: run[field][p] for p in PERCENTILES}, "hits": run["hit_rate_percent"]}


def modelled(
    variant: str, traffic: Path, cost: Path, rate: float, options: argparse.Namespace
) -> dict[str, Any]:
    """Return what a replay with the fitted model says of a rate."""
    out = options.folder / f"{variant}-modelled-{rate:.3g}"
    command(
        *("replay", "--workload", traffic, "--variant", variant, "--cost-model", cost),
        *("--arrivals", f"poisson:{rate}", "--seed", options.seed, "--out", out),
        *("--max-num-seqs", MAX_NUM_SEQS, "--max-model-len", MAX_MODEL_LEN),
        *("--max-num-batched-tokens", MAX_NUM_BATCHED_TOKENS, "--jobs", 1),
        *("--data-parallel", options.ranks, "--block-size", block_size_of(options)),
        *("--kv-gib", 1 if options.gemma else 64),  # tiny blocks, or those of the real layout
        *layout_of(options),
    )
    return times_of(out, "modelled_ttft_ms")


def measured(
    variant: str, url: str, traffic: Path, rate: float, options: argparse.Namespace
) -> dict[str, Any]:
    """Return what the server says of a rate; its prompts are those of no other rate."""
    out = options.folder / f"{variant}-measured-{rate:.3g}"
    # Arrivals by the same seed; other ids at each rate, so that nothing of it is cached already.
    command(
        *("replay", "--url", url, "--workload", other_ids(traffic, rate)),
        *("--arrivals", f"poisson:{rate}", "--seed", options.seed, "--out", out),
    )
    return times_of(out, "ttft_ms")


def other_ids(traffic: Path, rate: float) -> Path:
    """Return a copy whose prompts begin alike exactly where those of the original do."""
    path = traffic.with_name(f"traffic-{rate:.3g}.jsonl")
    shift = 1 + round(rate * 1000) * 7919
    rows = map(json.loads, traffic.read_text().splitlines())
    path.write_text(
        "".join(
            json.dumps({**row, "prompt_token_ids": [i + shift for i in row["prompt_token_ids"]]})
            + "\n"
            for row in rows
        )
    )
    return path


def crossing(rates: Sequence[float], times: Sequence[float], limit: float) -> float | None:
    """Return the rate at which a time reaches a limit, ``None`` if it does at none of them.

    Between two rates the logarithms are on a line; where noise makes it cross more than once, the
    first counts.
    """
    points = [(math.log(rate), math.log(time)) for rate, time in zip(rates, times, strict=True)]
    for (x, y), (next_x, next_y) in pairwise(points):
        if y <= math.log(limit) < next_y:
            return math.exp(x + (math.log(limit) - y) * (next_x - x) / (next_y - y))
    return None


def choose_rates(
    variant: str, traffic: Path, cost: Path, options: argparse.Namespace
) -> tuple[list[float], float]:
    """Return rates around the one at which the model says the promise is broken, and it in ms."""
    rates = [_QUIET]
    times = [modelled(variant, traffic, cost, _QUIET, options)["p90"]]
    limit = options.ttft_ms or 2 * times[0]
    while times[-1] <= limit:
        rates.append(2 * rates[-1])
        times.append(modelled(variant, traffic, cost, rates[-1], options)["p90"])
    broken = crossing(rates, times, limit)
    if broken is None:
        raise SystemExit(f"--ttft-ms {limit:g}: broken at every rate, as requests come one by one")
    growth = 3 ** (1 / max(options.rates - 1, 1))
    return [broken / 2 * growth**number for number in range(options.rates)], limit


def calibrate(variant: str, url: str, number: int, options: argparse.Namespace) -> Path:
    """Return the file of a cost model of the server as it is now."""
    cost = options.folder / f"{variant}-cost-{number}.json"
    command(
        *("calibrate", "--url", url, "--out", cost, "--minutes", options.minutes),
        *("--max-num-batched-tokens", MAX_NUM_BATCHED_TOKENS),
        *("--max-prompt-tokens", options.max_prompt_tokens),
        *("--concurrency", options.concurrency),
        *layout_of(options),
    )
    return cost


def compare(variant: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return both sides of one variant."""
    traffic, num_requests = write_traffic(options)
    rows: list[dict[str, Any]] = []
    with served(variant, options) as url:
        cost = calibrate(variant, url, 0, options)
        rates, limit = choose_rates(variant, traffic, cost, options)
        for number, rate in enumerate(rates, 1):
            cost = calibrate(variant, url, number, options)
            row: dict[str, Any] = {"rate": rate, "load_before": os.getloadavg()[0]}
            row["measured"] = measured(variant, url, traffic, rate, options)
            row["modelled"] = modelled(variant, traffic, cost, rate, options)
            row["quiet_ms"] = modelled(variant, traffic, cost, _QUIET, options)["p50"]
            row["calibration_error_percent"] = json.loads(cost.read_text())["error_percent"]
            rows.append(row)
    goodput = {
        side: crossing(rates, [row[side]["p90"] for row in rows], limit)
        for side in ("measured", "modelled")
    }
    quiet = [row["quiet_ms"] for row in rows]
    return {
        "variant": variant,
        "num_requests": num_requests,
        "ttft_ms": limit,
        "goodput": goodput,
        "drift_percent": 100 * (max(quiet) / min(quiet) - 1),
        "rates": rows,
    }


def difference(modelled: float | None, measured: float | None) -> str:
    """Return how far a modelled figure is from the measured one, in percent."""
    if not modelled or not measured:
        return "-"
    return f"{100 * (modelled / measured - 1):+.0f} %"


def print_tables(results: Sequence[dict[str, Any]], console: Console) -> None:
    """Print times by rate, and the goodput of each variant."""
    columns = ("variant", "requests per s", "TTFT", "measured, ms", "modelled, ms", "", "hits, %")
    times = Table(*columns, "load")
    for result in results:
        for row in result["rates"]:
            one, other = row["measured"], row["modelled"]
            for name in PERCENTILES:
                times.add_row(
                    *(result["variant"], f"{row['rate']:.2f}", name, f"{one[name]:.0f}"),
                    *(f"{other[name]:.0f}", difference(other[name], one[name])),
                    *(f"{one['hits']:.1f} / {other['hits']:.1f}", f"{row['load_before']:.1f}"),
                )
    console.print(times)
    rates = Table("variant", "promised to 90 %", "goodput measured", "modelled", "", "drift")
    for result in results:
        one, other = result["goodput"]["measured"], result["goodput"]["modelled"]
        said = ["-" if rate is None else f"{rate:.2f} per s" for rate in (one, other)]
        limit = f"{result['ttft_ms']:.0f} ms"
        drift = f"{result['drift_percent']:.0f} %"
        rates.add_row(result["variant"], limit, *said, difference(other, one), drift)
    console.print(rates)


def main() -> None:
    options = arguments()
    options.folder.mkdir(parents=True, exist_ok=True)
    make_model(options)
    results = []
    with termination_interrupts():
        for variant in options.variant or environments(options):
            results.append(compare(variant, options))
            # One after the other takes long: what is there is kept.
            options.out.write_text(json.dumps(results, indent=1) + "\n")
    print_tables(results, Console(width=110))


if __name__ == "__main__":
    main()
