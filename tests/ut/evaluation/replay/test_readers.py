# SPDX-License-Identifier: Apache-2.0
"""Readers on real rows, and on every kind of bad one."""

import gzip
import json
import re

import pytest

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.readers.mooncake import mooncake_workload
from vllm_ascend_evaluation.replay.sources import WorkloadSource
from vllm_ascend_evaluation.replay.workloads import (
    WORKLOAD_NAMES,
    named_workload,
    shared_prefix,
)


def write(folder, records, name="trace.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def row(**changes):
    return {
        "timestamp": 1000,
        "input_length": 1300,
        "output_length": 5,
        "hash_ids": [7, 8, 9],
        **changes,
    }


def test_every_field_is_read(tmp_path):
    """Rows as a real trace has them: partial last blocks, and a first block that all share."""
    records = [
        row(
            timestamp=5_000 + 3_000 * number,
            input_length=700 * (number + 1),
            output_length=number + 1,
            hash_ids=[0, *range(1000 * number + 1, 1000 * number - (-700 * (number + 1) // 512))],
            session=number % 7,
        )
        for number in range(60)
    ]
    workload = mooncake_workload(write(tmp_path, records), max_requests=50)
    requests = list(workload.requests())
    assert workload.num_requests == len(requests) == 50
    for record, request in zip(records, requests, strict=False):
        prompt = request.prompt_token_ids
        assert len(prompt) == record["input_length"]
        assert prompt[::512] == [512 * i for i in record["hash_ids"]]
        assert request.output_tokens == record["output_length"]
        assert request.arrival_ms == record["timestamp"] - 5_000
        assert request.session == record["session"]
    assert any(record["input_length"] % 512 for record in records), "no partial block among them"


def test_equal_ids_at_equal_positions_are_equal_prefixes(tmp_path):
    path = write(tmp_path, [row(), row(hash_ids=[7, 8, 10])])
    first, second = (r.prompt_token_ids for r in mooncake_workload(path).requests())
    assert first[:1024] == second[:1024]
    assert not set(first[1024:]) & set(second[1024:])


@pytest.mark.parametrize("length", [511, 512, 513, 1024, 1025])
def test_the_last_id_may_be_partial(tmp_path, length):
    ids = list(range(-(-length // 512)))
    path = write(tmp_path, [row(input_length=length, hash_ids=ids)])
    (request,) = mooncake_workload(path).requests()
    assert len(request.prompt_token_ids) == length


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (row(hash_ids=[7, 8]), "2 hash_ids for 1300 tokens, expected 3"),
        (row(hash_ids="x"), "hash_ids must be a non-empty list"),
        (row(hash_ids=[7, -8, 9]), "hash_ids must be a non-empty list"),
        (row(input_length=0), "input_length is 0, expected a whole number >= 1"),
        (row(input_length="1300"), "input_length is '1300'"),
        (row(output_length=None), "output_length is missing: give --max-output-tokens"),
        (row(output_length=0), "output_length is 0, expected a whole number >= 1"),
        (row(timestamp=True), "timestamp is True"),
        (row(session=-1), "session is -1, expected a whole number >= 0"),
        (row(timestamp=1), "timestamp 1 lies before the previous one"),
        (row(hash_ids=[7, 8, 2**54]), "hash_ids has 18014398509481984, expected at most"),
        ([1, 2], "expected a JSON object"),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(tmp_path, bad, complaint):
    path = write(tmp_path, [row(), bad, row()])
    with pytest.raises(BadInputError, match=re.escape(f"{path}, line 2: ")) as error:
        mooncake_workload(path)
    assert complaint in str(error.value)


def test_bad_files(tmp_path):
    with pytest.raises(BadInputError, match="cannot be read"):
        mooncake_workload(tmp_path / "missing.jsonl")
    with pytest.raises(BadInputError, match="no requests"):
        mooncake_workload(write(tmp_path, []))
    fake = tmp_path / "fake.jsonl.gz"
    fake.write_text("{}")
    with pytest.raises(BadInputError, match="cannot be read"):
        mooncake_workload(fake)


@pytest.mark.parametrize("is_array", [True, False])
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"x":', "line 2, column 6: not valid JSON (ends too early)"),
        ('{"x" 1}', "line 2, column 6: not valid JSON (Expecting ':' delimiter)"),
        ('{"x": "y}', "line 2, column 7: not valid JSON (Unterminated string)"),
        ('{"x": "\t"}', "line 2, column 8: not valid JSON (Invalid control character)"),
        ('{"x": ' + "9" * 5000 + "}", "line 2: not valid JSON (a number has too many digits)"),
        ('{"x": ' + "[" * 100_000, "line 2: not valid JSON (nested too deeply)"),
        ("[1]", "line 2: expected a JSON object"),
    ],
)
def test_broken_json_is_named_once_with_the_line_of_the_file(tmp_path, text, complaint, is_array):
    path = tmp_path / "odd.jsonl"
    path.write_text(
        f"[{json.dumps(row())},\n{text}" if is_array else f"{json.dumps(row())}\n{text}"
    )
    with pytest.raises(BadInputError) as error:
        WorkloadSource(str(path)).load()
    assert str(error.value) == f"{path}, {complaint}"


def test_a_byte_order_mark_is_no_part_of_the_first_record(tmp_path):
    path = tmp_path / "marked.jsonl"
    for record in (row(), {"prompt_token_ids": [1], "output_length": 2}):
        path.write_text(json.dumps(record) + "\n", encoding="utf-8-sig")
        (request,) = WorkloadSource(str(path)).load().requests()
        assert request.output_tokens == record["output_length"]


def test_a_delay_takes_the_place_of_a_timestamp(tmp_path):
    later = row(session=3, delay=700)
    del later["timestamp"]
    path = write(tmp_path, [row(session=3), later, row(session=3, timestamp=9000, delay=1)])
    found = [(r.arrival_ms, r.think_ms) for r in mooncake_workload(path).requests()]
    assert found == [(0, None), (None, 700), (8000, 1)]
    del later["session"]
    with pytest.raises(BadInputError, match="line 2: delay means nothing without session"):
        mooncake_workload(write(tmp_path, [row(), later]))


def test_a_damaged_archive(tmp_path):
    data = bytearray(gzip.compress(json.dumps(row()).encode()))
    data[10] ^= 0xFF  # the first byte behind the header
    path = tmp_path / "damaged.jsonl.gz"
    path.write_bytes(data)
    with pytest.raises(BadInputError, match=re.escape(f"{path}: cannot be read")):
        mooncake_workload(path)


def test_mooncake_needs_timestamps(tmp_path):
    record = row()
    del record["timestamp"]
    with pytest.raises(BadInputError, match="line 1: timestamp is missing"):
        mooncake_workload(write(tmp_path, [record]))


@pytest.mark.parametrize("option", ["max_requests", "max_output_tokens", "concurrency"])
@pytest.mark.parametrize("value", [0, -1])
def test_limits_below_one_are_refused(tmp_path, option, value):
    path = write(tmp_path, [row()])
    with pytest.raises(BadInputError, match=f"{option} is {value}, expected at least 1"):
        mooncake_workload(path, **{option: value})


def test_limits(tmp_path):
    path = write(tmp_path, [row(output_length=50), row(), row()])
    workload = mooncake_workload(path, max_requests=2, max_output_tokens=9, concurrency=3)
    assert [request.output_tokens for request in workload.requests()] == [9, 5]
    assert (workload.num_requests, workload.concurrency) == (2, 3)
    assert "answers capped at 9 tokens" in workload.in_words(is_timed=False)
    assert "capped" not in mooncake_workload(path, max_output_tokens=50).in_words(is_timed=False)


def test_an_answer_of_unknown_length_takes_the_option(tmp_path):
    record = row()
    del record["output_length"]
    workload = mooncake_workload(write(tmp_path, [row(), record]), max_output_tokens=9)
    assert [request.output_tokens for request in workload.requests()] == [5, 9]
    assert "1 answers as long as --max-output-tokens" in workload.in_words(is_timed=False)


def test_a_trace_may_be_an_array(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([row(), row(timestamp=1700)], indent=1))
    workload = WorkloadSource(str(path)).load()
    assert [request.arrival_ms for request in workload.requests()] == [0, 700]


def test_the_format_is_told_by_the_first_record(tmp_path):
    """Not by the first line, which may be blank."""
    path = tmp_path / "trace.jsonl"
    path.write_text('\n{"prompt_token_ids": [1, 2], "output_length": 1}\n')
    (request,) = WorkloadSource(str(path)).load().requests()
    assert request.prompt_token_ids == [1, 2]
    path.write_text("\n" + json.dumps(row()) + "\n")
    (request,) = WorkloadSource(str(path)).load().requests()
    assert len(request.prompt_token_ids) == 1300


def test_what_is_shared_may_be_a_share():
    workloads = [WorkloadSource(f"3:8192:{shared}:4").load() for shared in ("7372", "90%")]
    one, other = ([r.prompt_token_ids for r in w.requests()] for w in workloads)
    assert one == other
    with pytest.raises(BadInputError, match="are more than the 100 of a prompt"):
        WorkloadSource("3:100:101%:4").load()


@pytest.mark.parametrize("name", WORKLOAD_NAMES)
def test_named_workloads_repeat_themselves(name):
    workload = named_workload(name, seed=3).cut(100, None)
    first = [len(request.prompt_token_ids) for request in workload.requests()]
    assert len(first) == workload.num_requests
    one, two = next(workload.requests()), next(workload.requests())
    assert one == two
    assert next(named_workload(name, seed=4).requests()) != one


def test_shapes():
    w1 = list(named_workload("W1").requests())
    assert {len(request.prompt_token_ids) for request in w1} == {8192}
    assert w1[0].prompt_token_ids[:7372] == w1[1].prompt_token_ids[:7372]
    assert w1[0].prompt_token_ids[7372:] != w1[1].prompt_token_ids[7372:]
    w5 = [request.prompt_token_ids for request in named_workload("W5").requests()]
    assert [len(prompt) for prompt in w5[14:]] == [
        128_000 * ((i % 10) + 1) // 10 for i in range(14)
    ]
    assert all(again == first[: len(again)] for first, again in zip(w5, w5[14:], strict=False))


def test_shared_prefix_checks_its_numbers():
    numbers = dict(
        num_requests=2, input_tokens=10, shared_tokens=5, output_tokens=1, concurrency=1, seed=0
    )
    with pytest.raises(BadInputError, match="11 shared tokens are more than the 10"):
        shared_prefix("x", **{**numbers, "shared_tokens": 11})
    for bad, complaint in [
        ({"num_requests": 0}, "requests must be at least 1, not 0"),
        ({"input_tokens": 0}, "input tokens must be at least 1, not 0"),
        ({"shared_tokens": -1}, "shared tokens must be at least 0, not -1"),
        ({"output_tokens": 0}, "output tokens must be at least 1, not 0"),
        ({"concurrency": 0}, "concurrency must be at least 1, not 0"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
    ]:
        with pytest.raises(BadInputError, match=f"x: {complaint}"):
            shared_prefix("x", **{**numbers, **bad})
    with pytest.raises(BadInputError, match="W5: seed must be at least 0"):
        named_workload("W5", seed=-1)


def test_sources(tmp_path):
    assert WorkloadSource("W2", concurrency=4).load().concurrency == 4
    assert WorkloadSource("3:100:50:2").load().num_requests == 3
    mooncake = write(tmp_path, [row()], "m.jsonl")
    tokens = write(tmp_path, [{"prompt_token_ids": [1], "output_length": 1}], "t.jsonl")
    assert len(next(WorkloadSource(str(mooncake)).load().requests()).prompt_token_ids) == 1300
    assert next(WorkloadSource(str(tokens)).load().requests()).prompt_token_ids == [1]
    with pytest.raises(BadInputError, match="neither a file, nor a folder, nor REQUESTS"):
        WorkloadSource("W9").load()
    with pytest.raises(BadInputError, match=r"--workload W4: .*conversation_trace\.jsonl of https"):
        WorkloadSource("W4").load()


def test_a_source_is_cut_whatever_it_is():
    """W1 as well: its answers of 1,024 tokens are most of what a replay of it costs."""
    whole, cut = (WorkloadSource("W1", max_requests=n).load() for n in (None, 3))
    requests = list(WorkloadSource("W1", max_requests=3, max_output_tokens=9).load().requests())
    assert [request.output_tokens for request in requests] == [9, 9, 9]
    assert requests[0].prompt_token_ids == next(whole.requests()).prompt_token_ids
    assert (cut.num_requests, len(list(cut.requests()))) == (3, 3)
    assert cut.description == whole.description + "; the first 3"
    assert WorkloadSource("W2", max_requests=50).load().description == (
        WorkloadSource("W2").load().description
    )
