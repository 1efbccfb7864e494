# SPDX-License-Identifier: Apache-2.0
"""What all test processes start with; counts the scheduled steps that the oracle verified."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.durations import summary_lines
from tests.tiers import QuickTier, is_one_of

# Every engine process would compile and load a program to see whether this processor's vector
# instructions work: a quarter of what a tiny engine costs. Children inherit the answer.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# No test is about compilation. An engine compiles small functions even with --enforce-eager, which
# takes more than half of its start.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

# A shell that starts us in the background switches the interrupt off, and children inherit that.
# Whatever handles it is reset to the default in them.
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    and threading.current_thread() is threading.main_thread()
):
    signal.signal(signal.SIGINT, signal.default_int_handler)

_DEFAULT_STEPS = 15_000
_COUNTS = pytest.StashKey[Counter[str]]()
# Counted beside the steps: without hits and preemptions the steps would prove little.
HITS = "requests that hit"
PREEMPTIONS = "preemptions"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--steps",
        type=int,
        default=_DEFAULT_STEPS,
        help="scheduled steps that the random workloads verify in all",
    )
    parser.addoption(
        "--every",
        type=int,
        default=1,
        metavar="N",
        help="of the cases of tests that have several, run one in N, always the same ones",
    )
    parser.addoption(
        "--quick",
        action="store_true",
        help="only the tests that tell most per second: without what tests/tiers.toml names",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    one_in = config.getoption("--every")
    tier = QuickTier.read() if config.getoption("--quick") else None
    chosen, left_out = [], []
    for item in items:
        runs = not hasattr(item, "callspec") or is_one_of(item.nodeid, one_in)
        runs = runs and (tier is None or tier.runs(item.nodeid))
        (chosen if runs else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_COUNTS] = Counter()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Interrupts raise, whoever started the tests; what one leaves behind ends with the test."""
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


@pytest.fixture
def verified_steps(request: pytest.FixtureRequest) -> Counter[str]:
    """Configuration -> scheduled steps verified; tests add to it."""
    return request.config.stash[_COUNTS]


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        counts = session.config.stash[_COUNTS]
        output["verified_steps"] = dict(counts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    output = getattr(node, "workeroutput", {})
    node.config.stash[_COUNTS].update(output.get("verified_steps", {}))  # type: ignore[attr-defined]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    reports = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
    ]
    for line in summary_lines(reports):
        terminalreporter.write_line(line)
    counts = config.stash[_COUNTS].copy()
    extra = ", ".join(f"{name} {counts.pop(name, 0):,}" for name in (HITS, PREEMPTIONS))
    if not counts:
        return
    if config.get_verbosity() > 0:
        for name, count in sorted(counts.items()):
            terminalreporter.write_line(f"{count:>10,} {name}")
    total = sum(counts.values())
    terminalreporter.write_line(f"scheduled steps verified: {total:,} ({extra})")
