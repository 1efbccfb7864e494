# SPDX-License-Identifier: Apache-2.0
"""The runner against children that misbehave; a script stands in for the real one."""

import os
import signal
import sys
import textwrap
import threading
import time

import pytest

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.runs import runner
from vllm_ascend_evaluation.replay.runs.job import CLOSED_LOOP, Job
from vllm_ascend_evaluation.replay.runs.runner import Runner
from vllm_ascend_evaluation.replay.sources import WorkloadSource

pytestmark = pytest.mark.usefixtures("interruptible")

# The real server, with other runs: what they do is the name of their variant.
PYTHON = sys.executable
SERVER = """\
    #!{python}
    import os, signal, sys, time
    sys.path.insert(0, {repository!r})
    from tests.ut.evaluation.replay.test_report import make_run
    from vllm_ascend.prefix_cache_config import VARIABLES
    from vllm_ascend_evaluation.replay.runs import fork_server
    from vllm_ascend_evaluation.replay.trace import BadInputError

    def run(job, on_progress):
        if job.variant == "dies":
            sys.exit("it broke")
        if job.variant == "bad":
            raise BadInputError("no such thing")
        if job.variant == "deaf":
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
        print("vLLM prints what it likes", flush=True)
        on_progress(1)
        names = {{variable.name for variable in VARIABLES}}
        ours = {{name: value for name, value in os.environ.items() if name in names}}
        try:
            time.sleep(0 if job.variant == "good" else 3600)
            complete = True
        except KeyboardInterrupt:
            complete = False
        return make_run(job.variant, complete=complete, settings=ours)

    def prepare():
        print("vLLM prints what it likes", flush=True)
        if {is_broken}:
            sys.exit("no vLLM")

    fork_server.main(prepare, run)
"""


def stand_in(monkeypatch, request, folder, *, is_broken: bool):
    script = folder / "python"
    script.write_text(
        textwrap.dedent(SERVER).format(
            python=PYTHON, repository=str(request.config.rootpath), is_broken=is_broken
        )
    )
    script.chmod(0o755)
    monkeypatch.setattr(runner.sys, "executable", str(script))


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch, tmp_path, request):
    stand_in(monkeypatch, request, tmp_path, is_broken=False)


def make_job(variant: str, environment: dict[str, str] | None = None) -> Job:
    return Job(
        variant=variant,
        patched=True,
        environment=environment or {},
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


class Watcher:
    """Keeps what it is told; calls ``on_progress`` when a run is under way."""

    def __init__(self, on_progress=lambda: None):
        self.told = []
        self._on_progress = on_progress

    def advance(self, index, done):
        self.told.append((index, done))
        self._on_progress()

    def finish(self, index, result):
        self.told.append((index, result.variant))

    def drop(self, index, reason):
        self.told.append((index, reason))


def run(*variants: str, num_parallel: int = 2, watcher=None, **options):
    jobs = [make_job(variant) for variant in variants]
    return Runner(num_parallel, watcher or Watcher(), **options).run(jobs)


def test_results_come_in_the_order_of_the_jobs():
    watcher = Watcher()
    outcome = run("good", "good", "good", watcher=watcher)
    assert [result.variant for result in outcome.results] == ["good"] * 3
    assert set(watcher.told) == {(index, what) for index in range(3) for what in (1, "good")}
    assert not outcome.interrupted and outcome.failures == ()


def test_every_run_has_its_own_variables_alone(monkeypatch):
    monkeypatch.setenv("VLLM_PIN_SWA_TOKENS", "1")
    environments = [{"VLLM_ASCEND_APPLY_DSV4_PATCH": "1"}, {}]
    jobs = [make_job("good", environment) for environment in environments]
    results = Runner(1, Watcher()).run(jobs).results
    assert [result.settings for result in results] == environments


def test_a_child_that_dies_costs_only_its_own_result():
    watcher = Watcher()
    outcome = run("dies", "good", num_parallel=1, watcher=watcher)
    assert [result.variant for result in outcome.results] == ["good"]
    (failure,) = outcome.failures
    assert "2:100:50:1 on dies ended with exit code 1" in failure and "it broke" in failure
    assert (0, "ended with exit code 1") in watcher.told


def test_without_vllm_one_failure_says_why(monkeypatch, request, tmp_path):
    stand_in(monkeypatch, request, tmp_path, is_broken=True)
    outcome = run("good", "good")
    assert outcome.results == [] and not outcome.interrupted
    (failure,) = outcome.failures
    assert "ended with exit code 1" in failure and "no vLLM" in failure


def test_bad_input_ends_the_others_at_once():
    start = time.monotonic()
    with pytest.raises(BadInputError, match="no such thing"):
        run("slow", "bad")
    assert time.monotonic() - start < 300


def test_a_refused_job_can_be_left_to_the_caller():
    refusals = []
    watcher = Watcher()
    outcome = run(
        *("bad", "good"),
        watcher=watcher,
        num_parallel=1,
        on_refusal=lambda *told: refusals.append(told),
    )
    assert refusals == [(0, "no such thing")]
    assert (0, "refused") in watcher.told
    assert [result.variant for result in outcome.results] == ["good"]
    assert not outcome.interrupted and outcome.failures == ()


def interrupting_once_running() -> Watcher:
    """Return a watcher that interrupts this process when a run is at work."""
    first = threading.Event()

    def on_progress():
        if not first.is_set():
            first.set()
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

    return Watcher(on_progress)


def test_an_interrupt_keeps_what_was_measured_and_starts_nothing_new():
    outcome = run("slow", "good", num_parallel=1, watcher=interrupting_once_running())
    assert outcome.interrupted and outcome.failures == ()
    (partial,) = outcome.results
    assert partial.variant == "slow" and not partial.complete
    # Impatience changes nothing until the process ends.
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_child_that_does_not_listen_is_ended(monkeypatch):
    monkeypatch.setattr(runner, "_GRACE_SECONDS", 0.5)
    start = time.monotonic()
    outcome = run("deaf", watcher=interrupting_once_running())
    assert outcome.interrupted and outcome.results == []
    assert time.monotonic() - start < 300
