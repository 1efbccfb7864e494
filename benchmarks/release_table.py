# SPDX-License-Identifier: Apache-2.0
"""Hit rates of every supported release, as vllm-ascend has it and as ours.

    python -m benchmarks.release_table [--release 0.23.0] [--block-size 32] [--mtp 1]
        [--trace FILE] [--out FOLDER]

Each release's real scheduler replays the same workloads (16 GiB, Ascend's layout), every row that
would be read checked by the content oracle. A release that is not the installed one is taken from
.venv-vllm, where `make other-vllm` has unpacked it. The exit code is 1 if a row was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.command_line.ends import EXIT_VIOLATION
from vllm_ascend.deployment import vllm_distribution
from vllm_ascend.releases import SUPPORTED, Release, find_release
from vllm_ascend_evaluation.replay.outputs import prepare_files
from vllm_ascend_evaluation.replay.report.json_file import write_whole

_UNPACKED = Path(__file__).parents[1] / ".venv-vllm"
_WORKLOADS = ("W1", "W2", "W3", "W5", "W5f")
# The layout with nothing switched on, at any block size, and the profile.
_VARIANTS = ("upstream-like", "best")
# As the trace is replayed everywhere in the docs.
_TRACE_LIMITS = ("--max-requests", "1000", "--max-output-tokens", "64")
# The same prompt twice; just longer than a granule with and without drafts, and than a block of the
# 128:1 group with 32 and with 128 rows.
_TWICE = tuple(f"2:{length}:{length}:1" for length in (140, 270, 4_200, 8_400, 16_600, 33_100))


@dataclass(frozen=True)
class Row:
    """What one release did under one variant.

    Attributes:
        hit_rates: Workload -> hit tokens in percent of prompt tokens.
        least_prefix: The shortest of the prompts given twice that hit, in tokens hit.
        wrong: What the oracle found.
    """

    release: str
    variant: str
    block_size: int
    num_speculative_tokens: int
    hit_rates: dict[str, float]
    least_prefix: int | None
    wrong: list[str]


def measure(release: Release, block_size: int, drafts: int, trace: Path | None) -> Iterator[Row]:
    """Yield a row per variant.

    Raises:
        SystemExit: A replay failed; says how it ended.
    """
    options = ("--block-size", str(block_size), "--mtp", str(drafts))
    runs = _replay(release, _WORKLOADS, options)
    if trace is not None:
        runs += [("W4", run) for _, run in _replay(release, (str(trace),), options + _TRACE_LIMITS)]
    twice = _replay(release, _TWICE, (*options, "--concurrency", "1"))
    for variant in _VARIANTS:
        own = [(name, run) for name, run in runs if run["variant"] == variant]
        hits = [run["hit_tokens"] for _, run in twice if run["variant"] == variant]
        yield Row(
            release=release.vllm,
            variant=variant,
            block_size=block_size,
            num_speculative_tokens=drafts,
            hit_rates={name: round(run["hit_rate_percent"], 2) for name, run in sorted(own)},
            least_prefix=min((hit for hit in hits if hit), default=None),
            wrong=[violation for _, run in own for violation in run["violations"]],
        )


def _replay(
    release: Release, workloads: Sequence[str], options: Sequence[str]
) -> list[tuple[str, dict[str, Any]]]:
    """Return (workload, run) of every run."""
    arguments = [f"--workload={name}" for name in workloads]
    arguments += [f"--variant={name}" for name in _VARIANTS]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "vllm_ascend", "replay", "--verify", *arguments, *options]
        result = subprocess.run(
            [*command, "--release", release.vllm, "--out", folder],
            env=_environment(release),
            stdout=subprocess.DEVNULL,
            check=False,
        )
        if result.returncode not in (0, EXIT_VIOLATION):
            raise SystemExit(f"the replay on vLLM {release.vllm} ended with {result.returncode}")
        report = json.loads((Path(folder) / "report.json").read_text())
    if not report["complete"]:
        raise SystemExit(f"a replay on vLLM {release.vllm} failed: see above")
    return [(work["workload"], run) for work in report["workloads"] for run in work["runs"]]


def _environment(release: Release) -> dict[str, str]:
    installed = vllm_distribution()
    if installed is not None and find_release(installed.version) is release:
        return dict(os.environ)
    return {**os.environ, "PYTHONPATH": str(_UNPACKED / release.vllm)}


def show(rows: Sequence[Row], console: Console) -> None:
    """Print a table for each block size."""
    names = sorted({name for row in rows for name in row.hit_rates})
    for block_size in dict.fromkeys(row.block_size for row in rows):
        drafts = rows[0].num_speculative_tokens
        title = f"block size {block_size}, MTP {drafts}: hit tokens in percent of prompt tokens"
        columns = ("vLLM", "as", *names, "least prefix")
        table = Table(*columns, title=title, box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        for row in rows:
            if row.block_size == block_size:
                table.add_row(
                    *(row.release, "ours" if row.variant == "best" else "upstream"),
                    *(f"{row.hit_rates[name]:.2f}" for name in names),
                    "-" if row.least_prefix is None else f"{row.least_prefix:,}",
                )
        console.print(table)
    for row in rows:
        for violation in row.wrong:
            console.print(f"wrong on vLLM {row.release}, {row.variant}: {violation}", style="red")


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    supported = {release.vllm: release for release in SUPPORTED}
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--release", action="append", choices=supported, help="default: all")
    parser.add_argument("--block-size", type=int, action="append", choices=(32, 64, 128))
    parser.add_argument("--mtp", type=int, default=0, help="draft tokens per step")
    parser.add_argument("--trace", type=Path, help="a conversation trace: the column W4")
    parser.add_argument("--out", type=Path, default=Path("bench-out"), help="for releases.json")
    parsed = parser.parse_args(arguments)
    if parsed.trace is not None and not parsed.trace.is_file():
        parser.error(f"--trace {parsed.trace}: there is no such file")
    parsed.releases = [supported[name] for name in parsed.release or supported]
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; return the exit status."""
    options, rows = _arguments(arguments), []
    results = options.out / "releases.json"
    try:
        prepare_files({"--out": results})
    except BadInputError as error:
        raise SystemExit(f"error: {error}") from error
    for release in options.releases:
        for block_size in options.block_size or (128,):
            rows += measure(release, block_size, options.mtp, options.trace)
    write_whole(results, json.dumps([asdict(row) for row in rows], indent=1))
    show(rows, Console())
    return int(any(row.wrong for row in rows))


if __name__ == "__main__":
    sys.exit(main())
