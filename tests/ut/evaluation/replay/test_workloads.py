# SPDX-License-Identifier: Apache-2.0
"""The named workloads have their documented shapes and cost nothing until they are read."""

import json
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.sources import WorkloadSource
from vllm_ascend_evaluation.replay.trace import TraceRequest, Workload
from vllm_ascend_evaluation.replay.workloads import (
    WORKLOAD_NAMES,
    named_workload,
    round_robin,
    shared_prefix,
)


@pytest.mark.parametrize(
    ("name", "lengths", "output_tokens", "concurrency"),
    [
        ("W1", [8192] * 320, 1024, 32),
        ("W2", [14_000] * 10, 1, 1),
        ("W3", [64_530] * 2, 1, 1),
        ("W5", [128_000] * 14 + [12_800 * ((i % 10) + 1) for i in range(14)], 1, 1),
        ("W5f", [128_000] * 28, 1, 1),
    ],
)
def test_documented_shapes(name, lengths, output_tokens, concurrency):
    workload = named_workload(name)
    requests = list(workload.requests())
    assert [len(request.prompt_token_ids) for request in requests] == lengths
    assert {request.output_tokens for request in requests} == {output_tokens}
    assert {request.arrival_ms for request in requests} == {None}
    assert (workload.name, workload.concurrency) == (name, concurrency)


def test_prefixes_take_turns_and_every_prompt_ends_in_its_own_way():
    workload = WorkloadSource("3x2:100:20:4").load()
    assert (workload.num_requests, workload.concurrency) == (6, 1)
    prompts = [request.prompt_token_ids for request in workload.requests()]
    assert {len(prompt) for prompt in prompts} == {120}
    assert [prompt[:100] for prompt in prompts[:3]] == [prompt[:100] for prompt in prompts[3:]]
    assert len({tuple(prompt[:1]) for prompt in prompts[:3]}) == 3
    assert len({tuple(prompt[100:]) for prompt in prompts}) == 6
    assert prompts == [request.prompt_token_ids for request in workload.requests()]


def test_a_prefix_is_the_same_however_many_there_are():
    """Lines over the number of prefixes then differ in the number alone."""
    few, many = (
        next(iter(WorkloadSource(f"{number}x2:50:5:1").load().requests())) for number in (2, 4)
    )
    assert few.prompt_token_ids[:50] == many.prompt_token_ids[:50]


@pytest.mark.parametrize(
    ("numbers", "what"),
    [
        ({"num_prefixes": 0}, "prefixes must be at least 1"),
        ({"num_rounds": 0}, "rounds must be at least 1"),
        ({"own_tokens": 0}, "own tokens must be at least 1"),
    ],
)
def test_turns_of_nothing_are_refused(numbers, what):
    shape = dict(num_prefixes=1, num_rounds=1, shared_tokens=1, own_tokens=1, output_tokens=1)
    with pytest.raises(BadInputError, match=what):
        round_robin("turns", **{**shape, **numbers}, concurrency=1, seed=0)


@pytest.mark.parametrize(("name", "shared"), [("W1", 7372), ("W2", 14_000), ("W3", 32_274)])
def test_prompts_part_right_behind_what_they_share(name, shared):
    first, *others = (np.array(r.prompt_token_ids) for r in named_workload(name).requests())
    for other in others:
        different = np.flatnonzero(first != other)
        # Two random tokens may agree, rarely several in a row.
        parted = different[0] if len(different) else len(first)
        assert shared <= parted <= shared + 3


@pytest.mark.parametrize("name", ["W5", "W5f"])
def test_replays_begin_like_their_own_prompt_and_no_other(name):
    prompts = [request.prompt_token_ids for request in named_workload(name).requests()]
    for first, again in zip(prompts[:14], prompts[14:], strict=True):
        assert first[: len(again)] == again
    assert len({tuple(prompt[:16]) for prompt in prompts}) == 14


def test_every_reading_is_alike():
    """Also when two readings are interleaved, as a survey and a replay may be."""
    for name in WORKLOAD_NAMES:
        workload = named_workload(name, seed=5)
        pairs = zip(workload.requests(), workload.requests(), strict=True)
        assert all(one == two for one, two in islice(pairs, 12))


def test_prompts_are_made_one_at_a_time():
    workload = shared_prefix(
        "endless",
        num_requests=10**12,
        input_tokens=100,
        shared_tokens=50,
        output_tokens=1,
        concurrency=1,
        seed=0,
    )
    assert workload.num_requests == 10**12
    assert len(list(islice(workload.requests(), 3))) == 3


def test_nothing_here_imports_vllm():
    """The command line must answer at once; importing vLLM takes seconds."""
    code = (
        "import sys, vllm_ascend_evaluation.replay.bounds\n"
        "import vllm_ascend_evaluation.replay.workloads\n"
        "sys.exit('vllm' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_requests_that_are_too_long_are_counted_and_left_out():
    lengths = [10, 50, 11, 10]
    requests = [TraceRequest([1] * length, 5) for length in lengths]
    workload = Workload("x", "some", 2, len(requests), lambda: iter(requests))
    assert workload.within(55) is workload
    cut = workload.within(15)
    assert (cut.num_requests, cut.num_left_out) == (2, 2)
    assert list(cut.requests()) == list(cut.requests()) == [requests[0], requests[3]]
    assert cut.description == "some; 2 longer than 15 left out"
    with pytest.raises(
        BadInputError, match=r"--workload x: every request is too long: .* 15 tokens or more, above"
    ):
        workload.within(14)


@pytest.mark.parametrize(
    "name", [*WORKLOAD_NAMES, "chat:30", "20:100:50:4", "3x2:50:5:1", "log.jsonl", "trace.jsonl"]
)
def test_a_workload_names_the_concurrency_in_force_and_no_other(name, tmp_path):
    record = {"hash_ids": [1], "input_length": 3, "output_length": 1, "timestamp": 0}
    (tmp_path / "trace.jsonl").write_text(json.dumps(record))
    (tmp_path / "log.jsonl").write_text(json.dumps({"prompt": [1], "max_tokens": 1}))
    path = tmp_path / name
    workload = WorkloadSource(str(path) if path.exists() else name, concurrency=7).load()
    assert workload.concurrency == 7
    words = workload.in_words(is_timed=False)
    assert "; 7 at a time" in words and words.count("at a time") == 1
    assert "one after another" not in words
    timed = workload.in_words(is_timed=True)
    assert "; at their timestamps" in timed and "at a time" not in timed
