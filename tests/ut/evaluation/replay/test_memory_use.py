# SPDX-License-Identifier: Apache-2.0
"""Shares of memory, and several ranks' together."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

from tests.ut.evaluation.replay.test_report import make_run
from vllm_ascend_evaluation.replay.memory_use import NUM_PURPOSES, MemoryUse
from vllm_ascend_evaluation.replay.results import RunResult

USE = MemoryUse(live=30, rows=40, spares=20, empty=10, num_waited=3, no_tail_tokens=5)


def test_purposes_come_first_and_are_shares_of_all_blocks():
    purposes = [field.name for field in fields(MemoryUse)][:NUM_PURPOSES]
    assert sum(map(USE.share, purposes)) == 100
    assert (USE.share("live"), USE.share("fragments")) == (30, 0)
    assert MemoryUse().share("live") == 0


def test_ranks_have_the_mean_of_blocks_and_the_sum_of_all_else():
    other = MemoryUse(live=50, rows=50, num_waited=4, no_tail_tokens=6, no_rows_tokens=7)
    whole = MemoryUse.of_ranks([USE, other])
    assert (whole.live, whole.rows, whole.spares) == (40, 45, 10)
    assert (whole.num_waited, whole.no_tail_tokens, whole.no_rows_tokens) == (7, 11, 7)
    unknown = MemoryUse(live=1, no_tail_tokens=None)
    assert MemoryUse.of_ranks([unknown, unknown]).no_tail_tokens is None


def test_it_is_read_as_it_was_written():
    run = make_run(memory=MemoryUse(live=1.5, rest_rates={"LRU": 12.5}))
    assert RunResult.from_dict(json.loads(json.dumps(asdict(run)))) == run
