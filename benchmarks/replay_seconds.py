# SPDX-License-Identifier: Apache-2.0
"""How far a replay's modelled seconds are from those of a real server, here and now.

    .venv/bin/python -m benchmarks.replay_seconds --out seconds.json
    .venv/bin/python -m benchmarks.replay_seconds --workload agentic:600 --scale 128 --variant best
    .venv/bin/python -m benchmarks.replay_seconds --gemma 6 --workload chat:8000 --scale 2

For each variant a tiny DeepSeek-V4, or Gemma-3, is served on the CPU. The same requests come
at random at several rates, to the server and to a replay. Its cost model is the mean of those that
were fitted right before and right after. Shown are times to first token side by side, and the rate
at which a tenth of the requests waits longer than promised. Nothing else should run: an engine
takes one core, and its front end another. "error" is the p90 of the errors of a calibration, on
measurements kept apart, of the worse one of the two; "drift" is how far the fitted models of one
variant are apart, in the time of a prompt of middle length. What a machine does by itself cannot
be told more exactly.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.tiny_server import (
    ENVIRONMENTS,
    GEMMA_ENVIRONMENTS,
    MAX_MODEL_LEN,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    block_size_of,
    environments,
    layout_of,
    make_model,
    run_command,
    served,
)
from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.command_line.ends import EXIT_INTERRUPTED, bad_input_ends
from vllm_ascend.command_line.interrupts import termination_interrupts
from vllm_ascend_evaluation.calibrate.shots import prefill_observation
from vllm_ascend_evaluation.replay.cost.model import TERMS, CostModel
from vllm_ascend_evaluation.replay.outputs import partial_name, prepare_files
from vllm_ascend_evaluation.replay.sources import WorkloadSource

PERCENTILES = ("p50", "p90")
# Requests per second at which nobody waits for others.
_QUIET = 0.02
# Fewer at a rate tell nothing of a tenth of them.
_LEAST_REQUESTS = 100
# Beyond those asked for, until the promise is broken.
_MORE_RATES = 3
_MOST_DOUBLINGS = 12  # all requests come at once then


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_AsWritten)
    parser.add_argument("--workload", default="chat:4000", help="as for replay (chat:4000)")
    parser.add_argument(
        "--variant",
        action="append",
        choices=ENVIRONMENTS | GEMMA_ENVIRONMENTS,
        help="several times (default: upstream-like and best; with --gemma stock and best)",
    )
    parser.add_argument(
        "--gemma",
        type=int,
        metavar="LAYERS",
        help="a tiny Gemma-3 of so many layers instead, in blocks of 32 tokens",
    )
    parser.add_argument("--scale", type=int, default=8, help="one of so many tokens of prompts (8)")
    parser.add_argument(
        "--max-prompt-tokens", type=int, default=1024, help="longer are left out (1024)"
    )
    parser.add_argument("--max-output-tokens", type=int, default=16, help="cap of answers (16)")
    parser.add_argument("--minutes", type=float, default=1.0, help="of each calibration (1)")
    parser.add_argument(
        "--concurrency", type=int, default=MAX_NUM_SEQS, help=f"of a calibration ({MAX_NUM_SEQS})"
    )
    parser.add_argument("--rates", type=int, default=4, help="at least so many rates (4)")
    parser.add_argument("--seconds", type=float, default=60, help="of traffic at each rate (60)")
    parser.add_argument("--ranks", type=int, default=1, help="--data-parallel-size (1)")
    parser.add_argument(
        "--ttft-ms", type=float, help="promised to 90 %% (three times what they have unloaded)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of prompts and arrivals (0)")
    parser.add_argument("--folder", type=Path, default=Path("seconds-out"), help="of all files")
    parser.add_argument("--out", type=Path, default=Path("seconds.json"), help="results")
    options = parser.parse_args()
    options.variant = options.variant or list(environments(options))
    for variant in options.variant:
        if variant not in environments(options):
            parser.error(f"--variant {variant}: expected {' or '.join(environments(options))}")
    for name, value in vars(options).items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and name != "seed" and value <= 0:
            parser.error(f"--{name.replace('_', '-')} {value:g}: expected a number above 0")
    return options


class _AsWritten(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the description."""


@dataclass(frozen=True)
class Calibration:
    """A cost model of the server as it was at one time.

    Attributes:
        file: As ``calibrate`` writes it.
        content: Of the file.
    """

    file: Path
    content: dict[str, Any]

    @property
    def error_percent(self) -> float:
        """The p90 of its errors on measurements kept apart."""
        return float(self.content["error_percent"]["p90"])

    def lone_prompt_ms(self, num_tokens: int) -> float:
        """Return how long a prompt takes by it."""
        model = CostModel(**self.content["model"])
        return prefill_observation(num_tokens, 1.0, MAX_NUM_BATCHED_TOKENS).said_ms(model)


def write_traffic(options: argparse.Namespace) -> Path:
    """Write all requests of which server and replay get the first ones; return the file.

    Raises:
        BadInputError: They cannot be read, or none is short enough.
    """
    path = options.folder / "traffic.jsonl"
    rows = []
    for request in WorkloadSource(options.workload, options.seed).load().requests():
        prompt = request.prompt_token_ids[:: options.scale]
        if len(prompt) <= options.max_prompt_tokens:
            length = min(request.output_tokens, options.max_output_tokens)
            rows.append(json.dumps({"prompt_token_ids": prompt, "output_length": length}))
    if not rows:
        raise BadInputError(
            f"--max-prompt-tokens {options.max_prompt_tokens}: no prompt of {options.workload} has "
            f"so few with --scale {options.scale}"
        )
    path.write_text("\n".join(rows) + "\n")
    return path


def of_rate(traffic: Path, rate: float, options: argparse.Namespace) -> tuple[Path, int]:
    """Write as many requests as come at a rate; return the file and their number.

    Its prompts begin alike exactly where those of the traffic do, but are those of no other rate:
    a server has nothing of it cached.
    """
    path = traffic.with_name(f"traffic-{rate:.3g}.jsonl")
    shift = 1 + round(rate * 1000) * 7919
    lines = traffic.read_text().splitlines()
    lines = lines[: max(math.ceil(rate * options.seconds), _LEAST_REQUESTS)]
    rows = [
        {**row, "prompt_token_ids": [i + shift for i in row["prompt_token_ids"]]}
        for row in map(json.loads, lines)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path, len(rows)


def times_of(folder: Path, field: str) -> dict[str, Any]:
    """Return the hits and the times to first token, a field, of the only run of a report."""
    (workload,) = json.loads((folder / "report.json").read_text())["workloads"]
    (run,) = workload["runs"]
    return {**{p: run[field][p] for p in PERCENTILES}, "hits": run["hit_rate_percent"]}


def modelled(
    variant: str, requests: Path, cost: Path, rate: float, options: argparse.Namespace
) -> dict[str, Any]:
    """Return what a replay with the fitted model says of requests that come at a rate."""
    out = options.folder / f"{variant}-modelled-{rate:.3g}"
    run_command(
        *("replay", "--workload", requests, "--variant", variant, "--cost-model", cost),
        *("--arrivals", f"poisson:{rate}", "--seed", options.seed, "--out", out),
        *("--max-num-seqs", MAX_NUM_SEQS, "--max-model-len", MAX_MODEL_LEN),
        *("--max-num-batched-tokens", MAX_NUM_BATCHED_TOKENS, "--jobs", 1),
        *("--data-parallel", options.ranks, "--block-size", block_size_of(options)),
        *("--kv-gib", 1 if options.gemma else 64),  # tiny blocks, or those of the real layout
        *layout_of(options),
    )
    return times_of(out, "modelled_ttft_ms")


def measured(
    variant: str, url: str, requests: Path, rate: float, options: argparse.Namespace
) -> dict[str, Any]:
    """Return what the server says of requests that come at a rate."""
    out = options.folder / f"{variant}-measured-{rate:.3g}"
    run_command(
        *("replay", "--url", url, "--workload", requests),
        *("--arrivals", f"poisson:{rate}", "--seed", options.seed, "--out", out),
    )
    return times_of(out, "ttft_ms")


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


def promise_of(
    variant: str, traffic: Path, cost: Path, options: argparse.Namespace
) -> tuple[float, float]:
    """Return the rate at which the model says the promise is broken, and the promise in ms.

    Raises:
        BadInputError: Nobody keeps the promise, or everybody does.
    """
    quiet = modelled(variant, of_rate(traffic, _QUIET, options)[0], cost, _QUIET, options)
    limit = options.ttft_ms or 3 * quiet["p90"]
    rates, times = [_QUIET], [quiet["p90"]]
    for number in range(_MOST_DOUBLINGS):
        if times[-1] > limit:
            break
        # One that serves them one by one would do 16 times as many as the first.
        rate = 1000 / quiet["p50"] / 16 * 2**number
        requests, _ = of_rate(traffic, rate, options)
        rates.append(rate)
        times.append(modelled(variant, requests, cost, rate, options)["p90"])
    broken = crossing(rates, times, limit)
    if broken is None:
        how = "nobody keeps it" if times[0] > limit else "everybody keeps it"
        raise BadInputError(
            f"--ttft-ms {limit:.0f}: {how}; at {rates[-1]:.3g} requests per s the model says "
            f"{times[-1]:.0f} ms (p90)"
        )
    return broken, limit


def calibrate(variant: str, url: str, number: int, options: argparse.Namespace) -> Calibration:
    """Return a cost model of the server as it is now."""
    cost = options.folder / f"{variant}-cost-{number}.json"
    run_command(
        *("calibrate", "--url", url, "--out", cost, "--minutes", options.minutes),
        *("--max-num-batched-tokens", MAX_NUM_BATCHED_TOKENS),
        *("--max-prompt-tokens", options.max_prompt_tokens),
        *("--concurrency", options.concurrency),
        *layout_of(options),
    )
    return Calibration(cost, json.loads(cost.read_text()))


def compare(variant: str, traffic: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield both sides of one variant, whenever one more rate has been measured."""
    rows: list[dict[str, Any]] = []
    with served(variant, options) as url:
        before = calibrate(variant, url, 0, options)
        broken, limit = promise_of(variant, traffic, before.file, options)
        calibrations = [before]
        for number in range(options.rates + _MORE_RATES):
            if number >= options.rates and is_broken(rows[-1], limit):
                break
            rate = broken / 2 * 3 ** (number / max(options.rates - 1, 1))
            row: dict[str, Any] = {"rate": rate}
            requests, row["num_requests"] = of_rate(traffic, rate, options)
            row["measured"] = measured(variant, url, requests, rate, options)
            after = calibrate(variant, url, number + 1, options)
            row["modelled"] = modelled(variant, requests, mean_of(before, after), rate, options)
            row["error_percent"] = max(before.error_percent, after.error_percent)
            rows.append(row)
            calibrations.append(after)
            before = after
            lone_ms = [of.lone_prompt_ms(options.max_prompt_tokens // 2) for of in calibrations]
            yield summary(variant, rows, limit, lone_ms)


def is_broken(row: dict[str, Any], limit: float) -> bool:
    """Whether the promise is broken on both sides."""
    return min(row["measured"]["p90"], row["modelled"]["p90"]) > limit


def mean_of(before: Calibration, after: Calibration) -> Path:
    """Write the cost model in the middle of two; return its file."""
    terms = [calibration.content["model"] for calibration in (before, after)]
    model = {name: sum(of[name] for of in terms) / len(terms) for name in TERMS}
    path = before.file.with_name(f"{before.file.stem}-to-{after.file.stem}.json")
    path.write_text(json.dumps({**before.content, "model": model}))
    return path


def summary(
    variant: str, rows: list[dict[str, Any]], limit: float, lone_ms: list[float]
) -> dict[str, Any]:
    """Return what the rates of a variant say together.

    Args:
        variant: Its name.
        rows: What was measured, by rate.
        limit: What is promised, in ms.
        lone_ms: Of a prompt of middle length, by each calibration.
    """
    rates = [row["rate"] for row in rows]
    goodput = {
        side: crossing(rates, [row[side]["p90"] for row in rows], limit)
        for side in ("measured", "modelled")
    }
    return {
        "variant": variant,
        "ttft_ms": limit,
        "goodput": goodput,
        "drift_percent": 100 * (max(lone_ms) / min(lone_ms) - 1),
        "rates": rows,
    }


def difference(modelled: float | None, measured: float | None) -> str:
    """Return how far a modelled figure is from the measured one, in percent."""
    if not modelled or not measured:
        return "-"
    return f"{100 * (modelled / measured - 1):+.0f} %"


def print_tables(results: Sequence[dict[str, Any]], console: Console) -> None:
    """Print times by rate, and the goodput of each variant."""
    times = Table("variant", "requests", "per s", "TTFT")
    for name in ("measured, ms", "modelled, ms", "", "hits, %", "error"):
        times.add_column(name)
    for result in results:
        for row in result["rates"]:
            one, other = row["measured"], row["modelled"]
            for name in PERCENTILES:
                times.add_row(
                    *(result["variant"], str(row["num_requests"]), f"{row['rate']:.2f}", name),
                    f"{one[name]:.0f}",
                    *(f"{other[name]:.0f}", difference(other[name], one[name])),
                    *(f"{one['hits']:.1f} / {other['hits']:.1f}", f"{row['error_percent']:.0f} %"),
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
    # An earlier run's results stay until all of these are there.
    partial = partial_name(options.out)
    results: list[dict[str, Any]] = []
    try:
        with termination_interrupts(), bad_input_ends():
            # Before anything is made or measured: whether there is a place for it.
            prepare_files({"--out": options.out, "--folder": options.folder / "traffic.jsonl"})
            traffic = write_traffic(options)
            make_model(options)
            for variant in options.variant:
                of_others = results
                for result in compare(variant, traffic, options):
                    results = [*of_others, result]
                    partial.write_text(json.dumps(results, indent=1) + "\n")
            partial.replace(options.out)
    except typer.Exit as end:
        raise SystemExit(end.exit_code) from end
    except (RuntimeError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"error: {error}") from error
    except KeyboardInterrupt as interrupt:
        raise SystemExit(EXIT_INTERRUPTED) from interrupt
    finally:
        if results:
            print_tables(results, Console(width=110))


if __name__ == "__main__":
    main()
