# SPDX-License-Identifier: Apache-2.0
"""A wrong row must not leave the replay looking fine: it ends in the result and the exit code."""

import pytest
import typer
from typer.testing import CliRunner

from tests.ut.evaluation.replay.test_report import make_run
from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.core.lookup.prefix_lookup import PrefixLookup
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend_evaluation.replay import cli, commands
from vllm_ascend_evaluation.replay.runs.child import run_job
from vllm_ascend_evaluation.replay.runs.job import CLOSED_LOOP, Job
from vllm_ascend_evaluation.replay.runs.runner import Outcome
from vllm_ascend_evaluation.replay.sources import WorkloadSource


def make_job(**changes) -> Job:
    settings = {
        "variant": "retention-0",
        "patched": True,
        "environment": {},
        "layout": "dsv4-flash-a3",
        "block_size": 32,
        "kv_memory_bytes": 3 << 30,
        "workload": WorkloadSource("6:9000:8500:4", concurrency=3),
        "arrivals": CLOSED_LOOP,
        "cost_model": None,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 2048,
        "max_model_len": 12_000,
        "verify": True,
    }
    return Job(**{**settings, **changes})


@pytest.fixture(autouse=True)
def _switches(monkeypatch):
    monkeypatch.setenv("VLLM_ASCEND_APPLY_DSV4_PATCH", "1")
    monkeypatch.setenv("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "0")


def test_a_sound_run_has_none():
    result = run_job(make_job())
    assert result.complete and result.violations == ()
    assert result.hit_tokens > 0


def test_a_planted_bug_is_in_the_result(monkeypatch):
    """Window blocks are lent without a look at what they hold."""
    monkeypatch.setattr(PrefixLookup, "tail", _tail_without_looking)
    result = run_job(make_job())
    assert not result.complete
    (violation,) = result.violations
    assert "group" in violation


def _tail_without_looking(self, group, boundary):
    """Claim that every window holds its tail, and lend whatever block there is."""
    some_block = self._view.pool.blocks[1]
    return [some_block for _ in group.tail(boundary)], boundary


def test_the_audit_at_the_end_needs_no_oracle(monkeypatch):
    """A block that is never given back is found by counting."""
    free = AscendBlockPool.free_blocks

    def leak_one(self, ordered_blocks, prepend=False):
        free(self, list(ordered_blocks)[1:], prepend)

    monkeypatch.setattr(AscendBlockPool, "free_blocks", leak_one)
    result = run_job(make_job(verify=False))
    assert result.complete and result.violations


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"kv_memory_bytes": 1 << 20}, "--kv-gib 0.000977: a request of --max-model-len 12000 "),
        ({"kv_tokens": 1}, "--kv-tokens 1: a request of --max-model-len 12000 "),
    ],
)
def test_too_little_memory_names_the_option(changes, complaint):
    with pytest.raises(BadInputError) as caught:
        run_job(make_job(**changes))
    assert str(caught.value).startswith(f"retention-0 on dsv4-flash-a3: {complaint}")
    assert "GiB of KV cache" in str(caught.value) and "\n" not in str(caught.value)


def invoke(monkeypatch, tmp_path, outcome):
    class Runner:
        def __init__(self, *args) -> None: ...

        def run(self, jobs):
            return outcome

    monkeypatch.setattr(commands, "Runner", Runner)
    app = typer.Typer()
    app.command()(cli.replay)
    return CliRunner().invoke(
        app, ["--workload", "2:100:50:1", "--variant", "retention-0", "--out", str(tmp_path)]
    )


def test_violations_decide_the_exit_code(monkeypatch, tmp_path):
    good = make_run(workload="2:100:50:1")
    bad = make_run(workload="2:100:50:1", violations=("group 3, block 7, row 1 is foreign",))
    assert invoke(monkeypatch, tmp_path, Outcome([good], interrupted=False)).exit_code == 0
    assert invoke(monkeypatch, tmp_path, Outcome([good], interrupted=True)).exit_code == 130
    result = invoke(monkeypatch, tmp_path, Outcome([bad], interrupted=False))
    assert result.exit_code == 1
    assert "block 7, row 1 is foreign" in (tmp_path / "report.json").read_text()


def test_a_died_child_is_told_and_the_others_are_kept(monkeypatch, tmp_path):
    good = make_run(workload="2:100:50:1")
    failures = ("W1 on x ended with exit code 9",)
    outcome = Outcome([good], interrupted=False, failures=failures)
    assert invoke(monkeypatch, tmp_path, outcome).exit_code == 1
    report = (tmp_path / "report.json").read_text()
    assert "ended with exit code 9" in report and good.variant in report
