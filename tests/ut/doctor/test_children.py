# SPDX-License-Identifier: Apache-2.0
"""An interrupt of the doctor ends all that it has started, at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vllm_ascend.doctor.children import ask, end_together
from vllm_ascend.prefix_cache_config import child_environment, process_environment

REPOSITORY = Path(__file__).parents[3]
# Starts a process of its own, names it, and waits for longer than any test may take.
WITH_A_CHILD = (
    "import subprocess, sys; child = subprocess.Popen(['sleep', '600']); "
    "open(sys.argv[1], 'w').write(str(child.pid)); child.wait()"
)
# Without an interrupt a doctor takes many seconds more.
SOON_S = 5.0


def wait_for(what: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def command_of(process: int) -> bytes:
    """Return a process's command line; nothing of one that has ended meanwhile."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def children_of(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def test_what_leaves_the_block_ends_children_with_theirs(tmp_path):
    named = tmp_path / "child"
    with ThreadPoolExecutor() as pool:
        with pytest.raises(KeyboardInterrupt), end_together():
            asked = pool.submit(
                ask, ["-c", WITH_A_CHILD, str(named)], environ=process_environment()
            )
            wait_for(lambda: named.exists() and named.read_text())
            raise KeyboardInterrupt
        assert "exit code -9" in asked.result(SOON_S)["died"]
        assert "exit code -9" in ask(["-c", "pass"], environ=process_environment())["died"]
    wait_for(lambda: not is_running(int(named.read_text())))
    with end_together():
        assert ask(["-c", "pass"], environ=process_environment())["died"].startswith("exit code 0")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_of_the_command_alone_ends_it_soon_with_one_line(number):
    process = subprocess.Popen(
        [sys.executable, "-m", "vllm_ascend", "doctor"],
        env=child_environment({}),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started: list[int] = []

    def are_started() -> bool:
        started[:] = children_of(process.pid)
        return any(b"serving_child" in command_of(child) for child in started)

    wait_for(are_started)
    begin = time.monotonic()
    os.kill(process.pid, number)
    output, error = process.communicate()
    assert time.monotonic() - begin < SOON_S
    assert (process.returncode, output) == (130, "")
    assert error == "interrupted: doctor was not finished; it changes nothing\n"
    assert not any(is_running(child) for child in started)
