# SPDX-License-Identifier: Apache-2.0
"""A tool is run to its end, or ended with all that it started."""

import os
import sys
import time

import pytest

from vllm_ascend_evaluation.regress.process import ToolError, run_tool

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep({seconds})
"""


def run(tmp_path, code, tick=lambda: None):
    log = tmp_path / "log.txt"
    run_tool([sys.executable, "-c", code], folder=tmp_path, log=log, tick=tick)


def is_alive(pid):
    """A process that nobody has waited for yet has ended all the same."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid):
    deadline = time.monotonic() + 300
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_it_runs_in_its_folder_and_its_output_is_kept(tmp_path):
    run(tmp_path, "import os, sys; print(os.getcwd()); print('e', file=sys.stderr)")
    assert sorted((tmp_path / "log.txt").read_text().split()) == sorted([str(tmp_path), "e"])


def test_how_it_failed_is_told(tmp_path):
    with pytest.raises(ToolError, match=r"ended with 3 and 'line 29': see .*log\.txt$"):
        run(tmp_path, "for i in range(30): print('line', i)\nraise SystemExit(3)")


def test_a_key_is_in_the_tools_environment_and_nowhere_behind_it(tmp_path):
    code = """
import os, pathlib
key = os.environ["OPENAI_API_KEY"]
assert os.environ["PATH"]
pathlib.Path("configs").mkdir()
pathlib.Path("configs/run.py").write_text(f"key = '{key}'")
raise SystemExit(f"no {key[::-1]} nor {key}")
"""
    command = [sys.executable, "-c", code]
    log = tmp_path / "log.txt"
    with pytest.raises(ToolError, match=r"ended with 1 and 'no terces nor \*\*\*': see"):
        run_tool(command, folder=tmp_path, log=log, tick=lambda: None, api_key="secret")
    assert (tmp_path / "configs" / "run.py").read_text() == "key = '***'"


def test_what_cannot_be_started_is_told(tmp_path):
    with pytest.raises(ToolError, match="no-such-tool cannot be started"):
        run_tool(["no-such-tool"], folder=tmp_path, log=tmp_path / "log", tick=lambda: None)


@pytest.mark.parametrize("seconds", [0.1, 60])
def test_nothing_is_left_behind(tmp_path, seconds):
    """Whether it ends by itself or is interrupted; its own child goes with it."""

    def interrupt():
        raise KeyboardInterrupt

    if seconds > 1:
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, PARENT.format(seconds=seconds), interrupt)
    else:
        run(tmp_path, PARENT.format(seconds=seconds))
    pid = int((tmp_path / "log.txt").read_text().split()[0])
    assert pid != os.getpid()
    wait_until_gone(pid)
