# SPDX-License-Identifier: Apache-2.0
"""The runner against children that misbehave; a script stands in for the real one."""

import os
import signal
import sys
import textwrap
import threading
import time

import pytest

from vllm_ascend.replay import runner
from vllm_ascend.replay.job import CLOSED_LOOP, Job, WorkloadSource
from vllm_ascend.replay.runner import Runner
from vllm_ascend.replay.trace import BadInputError

CHILD = """\
    #!{python}
    import json, signal, sys, time
    sys.path.insert(0, {repository!r})
    variant = json.loads(sys.stdin.readline())["variant"]
    if variant == "dies":
        sys.exit("it broke")
    if variant == "bad":
        print('@bad-input "no such thing"', flush=True)
        sys.exit(2)
    if variant == "deaf":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    from dataclasses import asdict
    from tests.ut.replay.test_report import make_run
    print("@progress 1 4", flush=True)
    print("vLLM prints what it likes", flush=True)
    try:
        time.sleep(0 if variant == "good" else 60)
        complete = True
    except KeyboardInterrupt:
        complete = False
    print("@result", json.dumps(asdict(make_run(variant, complete=complete))), flush=True)
"""


@pytest.fixture(autouse=True)
def _interruptible():
    """Whoever runs the tests in the background may have switched the interrupt off."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch, tmp_path, request):
    script = tmp_path / "python"
    repository = str(request.config.rootpath)
    script.write_text(textwrap.dedent(CHILD).format(python=sys.executable, repository=repository))
    script.chmod(0o755)
    monkeypatch.setattr(runner.sys, "executable", str(script))


def make_job(variant: str) -> Job:
    return Job(
        variant=variant,
        patched=True,
        environment={},
        layout="dsv4-flash-a3",
        block_size=32,
        kv_memory_bytes=1 << 30,
        workload=WorkloadSource("2:100:50:1"),
        arrivals=CLOSED_LOOP,
        cost_model=None,
        max_num_seqs=4,
        max_num_batched_tokens=2048,
        max_model_len=4096,
        verify=False,
    )


def run(*variants: str, num_parallel: int = 2, on_progress=lambda *progress: None):
    return Runner(num_parallel, on_progress).run([make_job(variant) for variant in variants])


def test_results_come_in_the_order_of_the_jobs():
    progress = []
    outcome = run("good", "good", "good", on_progress=lambda *told: progress.append(told))
    assert [result.variant for result in outcome.results] == ["good"] * 3
    assert sorted(progress) == [(0, 1, 4), (1, 1, 4), (2, 1, 4)]
    assert not outcome.interrupted and outcome.failures == ()


def test_a_child_that_dies_costs_only_its_own_result():
    outcome = run("dies", "good", num_parallel=1)
    assert [result.variant for result in outcome.results] == ["good"]
    (failure,) = outcome.failures
    assert "2:100:50:1 on dies ended with exit code 1" in failure and "it broke" in failure


def test_bad_input_ends_the_others_at_once():
    start = time.monotonic()
    with pytest.raises(BadInputError, match="no such thing"):
        run("slow", "bad")
    assert time.monotonic() - start < 30


def test_a_refused_job_can_be_left_to_the_caller():
    refusals = []
    runs = Runner(1, lambda *progress: None, lambda *told: refusals.append(told))
    outcome = runs.run([make_job(variant) for variant in ("bad", "good")])
    assert refusals == [(0, "no such thing")]
    assert [result.variant for result in outcome.results] == ["good"]
    assert not outcome.interrupted and outcome.failures == ()


def interrupt_once_running():
    """Return a progress callback that interrupts this process when a child is at work."""
    first = threading.Event()

    def on_progress(*_):
        if not first.is_set():
            first.set()
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

    return on_progress


def test_an_interrupt_keeps_what_was_measured_and_starts_nothing_new():
    outcome = run("slow", "good", num_parallel=1, on_progress=interrupt_once_running())
    assert outcome.interrupted and outcome.failures == ()
    (partial,) = outcome.results
    assert partial.variant == "slow" and not partial.complete


def test_a_child_that_does_not_listen_is_ended(monkeypatch):
    monkeypatch.setattr(runner, "_GRACE_SECONDS", 0.5)
    start = time.monotonic()
    outcome = run("deaf", on_progress=interrupt_once_running())
    assert outcome.interrupted and outcome.results == []
    assert time.monotonic() - start < 30
