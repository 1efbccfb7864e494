# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.vllm_own [RELEASE ...] [--jobs N]``.

Exit code 1 if anything differs that the table does not name, or does not differ that it names.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import tomllib

from tests.vllm_own.comparison import Difference, unexplained
from tests.vllm_own.runs import CONFIGURATIONS, SOURCES, WITHOUT, BrokenRunError, Run, run
from vllm_ascend.releases import SUPPORTED

_HERE = Path(__file__).parent
_RELEASES = [release.vllm for release in SUPPORTED]


def main(arguments: Sequence[str]) -> int:
    """Run every configuration of some releases, print what differs, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm_own", description=__doc__)
    parser.add_argument("releases", nargs="*", metavar="RELEASE", help=", ".join(_RELEASES))
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    told = parser.parse_args(arguments)
    if unknown := set(told.releases) - set(_RELEASES):
        parser.error(f"RELEASE {min(unknown)}: supported are {', '.join(_RELEASES)}")
    selection, known = _data("selection"), _data("differences")
    tasks = list(product(told.releases or _RELEASES, CONFIGURATIONS))
    threads = ThreadPoolExecutor(told.jobs)
    futures = {task: threads.submit(_run, *task, selection) for task in tasks}
    try:
        runs = {task: future.result() for task, future in futures.items()}
    except BrokenRunError as error:
        threads.shutdown(cancel_futures=True)
        print(f"error: {error}", file=sys.stderr)
        return 1
    reports = [
        _report(release, name, runs[release, WITHOUT], runs[release, name], known)
        for release, name in tasks
        if name != WITHOUT
    ]
    return int(not all(reports))


def _data(name: str) -> dict[str, Any]:
    return tomllib.loads((_HERE / f"{name}.toml").read_text(encoding="utf-8"))


def _run(release: str, configuration: str, selection: Mapping[str, Any]) -> Run:
    present = [
        name
        for name in selection["left_out"]
        if (SOURCES / release / name.partition("::")[0]).exists()
    ]
    started = time.monotonic()
    done = run(release, configuration, selection["folders"], present)
    counts = Counter(done.tests.values())
    told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))
    print(
        f"vLLM {release}, {configuration}: {told}, {time.monotonic() - started:.0f} s", flush=True
    )
    return done


def _report(
    release: str, configuration: str, without: Run, done: Run, known: Mapping[str, Any]
) -> bool:
    """Print what differs between two runs; return whether all of it is known."""
    rows = known.get(release, {}).get(configuration, [])
    problems = unexplained(without.tests, done.tests, [Difference(**row) for row in rows])
    print(f"vLLM {release}, {configuration}: {len(rows)} known differences, {len(problems)} others")
    for problem in problems:
        print(f"  {problem}")
        reason = done.reasons.get(problem.partition(": ")[0], "")
        print("".join(f"    | {line}\n" for line in reason.splitlines()[-8:]), end="")
    return not problems


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
