# SPDX-License-Identifier: Apache-2.0
"""With nothing switched on, a patched vLLM does step by step what an unpatched one does."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from unittest import mock

from vllm.v1.core.sched.scheduler import Scheduler

from tests.e2e.core.scheduler_trace import CASES, TraceCase, build
from vllm_ascend.dry_run.scheduler import make_request
from vllm_ascend.prefix_cache_config import child_environment
from vllm_ascend.releases import running_release

REPOSITORY = Path(__file__).parents[3]


def write_trace(mode: str, folder: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.core.scheduler_trace", mode, str(folder / mode)],
        cwd=REPOSITORY,
        env=child_environment({"VLLM_LOGGING_LEVEL": "ERROR"}),
        stderr=subprocess.PIPE,
        text=True,
    )


def test_patched_and_unpatched_schedulers_do_the_same(tmp_path):
    processes = [write_trace(mode, tmp_path) for mode in ("stock", "patched")]
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    stock, patched = ((tmp_path / mode).read_text().splitlines() for mode in ("stock", "patched"))
    assert len(stock) == sum(case.num_steps for case in CASES)
    for step, (theirs, ours) in enumerate(zip(stock, patched, strict=True)):
        assert ours == theirs, f"first difference in line {step}"

    # The comparison means something only if the workloads exercise the cache.
    totals: Counter[str] = Counter()
    for line in stock:
        case, _, rest = line.partition(" ")
        _, _, counts = json.loads(rest)
        totals.update({f"{case} {name}": count for name, count in counts.items()})
    assert any(totals[f"{case} hits"] for case in CASES), "nothing was hit"
    for case in CASES:
        # Later releases retain the end of a prompt alone, which few of these prompts share.
        assert totals[f"{case} hits"] or not running_release().counts_rows, f"{case}: no hits"
        # Windows alone give memory back as they go, and where few adapters run at a time, or blocks
        # wait for their loads, few requests do.
        is_tight = case.layout != "window" and case.failures is None and not case.with_lora
        # Later releases let a request in if all of it fits, and keep room for those let in.
        is_tight = is_tight and running_release().counts_rows
        assert totals[f"{case} preempted"] or not is_tight, f"{case}: nothing was preempted"
        assert totals[f"{case} events"], f"{case}: no KV events"
        assert totals[f"{case} loads"] or case.failures is None, f"{case}: nothing was loaded"
        assert totals[f"{case} failed"] or not case.failures, f"{case}: no load has failed"


def test_loaded_requests_go_first_only_where_something_is_switched_on(switch):
    """Too rare for a trace: nothing runs, and a request that starts anew is in front."""
    orders = {}
    for name, environment in (("unset", {}), ("on", {"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "0"})):
        switch(environment)
        scheduler = build(TraceCase("gemma", 160, failures=0.0))
        holders = getattr(scheduler, running_release().queue_of_holders)
        for request_id, num_computed in (("anew", 0), ("loaded", 16)):
            request = make_request(scheduler, request_id, list(range(40)), 1)
            request.num_computed_tokens = num_computed
            holders.add_request(request)
        orders[name] = first_of(scheduler)
    assert orders == {"unset": "anew", "on": "loaded"}


def first_of(scheduler: Scheduler) -> str:
    """Return who would be let in first if nobody could be, and the step ended there."""
    if not running_release().holders_go_first:
        return scheduler._select_waiting_queue_for_scheduling().peek_request().request_id
    with mock.patch.object(scheduler, "max_num_active_reqs", 0):
        scheduler.schedule()
    return (scheduler.kv_holding_waiting or scheduler.waiting).peek_request().request_id
