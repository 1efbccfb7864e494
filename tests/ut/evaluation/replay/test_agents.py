# SPDX-License-Identifier: Apache-2.0
"""Sessions of coding agents: who shares a prefix, in which order they come, and bad ones."""

import gzip
import json
from itertools import islice

import pytest

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.readers.agents import agents_workload
from vllm_ascend_evaluation.replay.sources import WorkloadSource


def turn(at=0.0, ids=(1, 2), rest=10, **changes):
    """Return a record whose prompt ends in a part of a block."""
    length = 64 * len(ids) + rest
    record = {"t": at, "type": "n", "in": length, "out": 5, "hash_ids": [*ids], "think_time": 2.5}
    return {**record, **changes}


def session(*requests, **changes):
    return {"id": "trace", "block_size": 64, "requests": [*requests], **changes}


def write(folder, *sessions):
    for number, document in enumerate(sessions):
        (folder / f"{number}.json").write_text(json.dumps(document))
    return folder


def read(path, **options):
    return list(agents_workload(path, **options).requests())


def common(one, two):
    pairs = zip(one.prompt_token_ids, two.prompt_token_ids, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(one.prompt_token_ids))


def test_a_turn_goes_on_behind_the_whole_blocks_of_the_one_before(tmp_path):
    first, second = read(write(tmp_path, session(turn(0), turn(9, ids=(1, 2, 3)))))
    assert [len(r.prompt_token_ids) for r in (first, second)] == [138, 202]
    assert common(first, second) == 128, "what is behind whole blocks is nobody else's"
    assert (first.session, first.arrival_ms, first.think_ms) == (0, 0.0, None)
    assert (second.session, second.arrival_ms, second.think_ms) == (0, 9000.0, 2500.0)
    assert second.output_tokens == 5


@pytest.mark.parametrize("scope, shared", [("local", 0), ("global", 128)])
def test_ids_are_a_sessions_own_unless_they_are_global(tmp_path, scope, shared):
    sessions = [session(turn(), hash_id_scope=scope)] * 2
    one, two = read(write(tmp_path, *sessions))
    assert common(one, two) == shared


def test_the_last_block_may_be_partial(tmp_path):
    one, two = read(write(tmp_path, session(turn(rest=-20), turn(1))))
    assert (len(one.prompt_token_ids), common(one, two)) == (108, 108)


def test_a_sub_agent_is_a_session_of_its_own_with_its_sessions_ids(tmp_path):
    agent = {"t": 3.0, "type": "subagent", "requests": [turn(0, ids=(7,)), turn(4, ids=(7, 8))]}
    requests = read(write(tmp_path, session(turn(), agent, turn(5, ids=(7, 9)))))
    assert [r.arrival_ms for r in requests] == [0, 3000, 5000, 7000]
    assert [r.session for r in requests] == [0, 1, 0, 1]
    assert [r.think_ms for r in requests] == [None, None, 2500, 2500]
    assert common(requests[1], requests[3]) == common(requests[1], requests[2]) == 64


def test_sessions_come_in_order_and_side_by_side(tmp_path):
    requests = read(write(tmp_path, *[session(turn(0), turn(1000))] * 3), seed=3)
    assert [r.session for r in requests] == [0, 1, 2, 0, 1, 2]
    assert requests == read(tmp_path, seed=3) != read(tmp_path, seed=4)
    times = [r.arrival_ms for r in requests]
    assert times == sorted(times) and times[0] == 0


def test_only_sessions_that_have_started_are_read(tmp_path):
    write(tmp_path, session(turn(), *(turn(0.01 * n) for n in range(1, 9))), session(turn()))
    (tmp_path / "2.json").write_text("{")
    assert len(list(islice(agents_workload(tmp_path, max_requests=9).requests(), 9))) == 9
    with pytest.raises(BadInputError, match=r"2.json, line 1, column 2: not valid JSON"):
        agents_workload(tmp_path)


def test_files_of_several_sessions_and_archives(tmp_path):
    lines = "".join(json.dumps(session(turn())) + "\n" for _ in range(3))
    path = tmp_path / "sessions.jsonl.gz"
    path.write_bytes(gzip.compress(lines.encode()))
    workload = WorkloadSource(str(path), concurrency=4, max_output_tokens=2).load()
    assert (workload.num_requests, workload.concurrency) == (3, 4)
    assert {r.output_tokens for r in workload.requests()} == {2}
    assert WorkloadSource(str(tmp_path)).prepared().load().num_requests == 3


@pytest.mark.parametrize(
    "document, complaint",
    [
        (session(turn(), block_size=0), "block_size is 0, expected a whole number >= 1"),
        (session(turn(), hash_id_scope="x"), "hash_id_scope is 'x', expected local or global"),
        (session(turn(), requests=3), "requests must be a list of objects"),
        (session(turn(), turn(ids=(1,), **{"in": 200})), "request 2: 1 hash_ids for 200 tokens"),
        (session(turn(at=-1)), "request 1: t is -1, expected seconds >= 0"),
        (session(turn(hash_ids=[1, -2])), "request 1: hash_ids must be"),
        (session(turn(), turn(think_time="x")), "request 2: think_time is 'x', expected seconds"),
        (session(turn(out=None)), "request 1: out is missing"),
        (session(), "no requests"),
    ],
)
def test_a_bad_session_is_named(tmp_path, document, complaint):
    with pytest.raises(BadInputError, match=complaint) as error:
        read(write(tmp_path, document))
    assert str(tmp_path) in str(error.value)


def test_a_folder_without_sessions_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(BadInputError, match=r"this folder has no .json or .jsonl file"):
        WorkloadSource(str(tmp_path)).load()
