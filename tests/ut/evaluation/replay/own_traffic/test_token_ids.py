# SPDX-License-Identifier: Apache-2.0
"""Token ids: sessions, times and lengths as records of text have them."""

import json
import re

import pytest

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.sources import WorkloadSource


@pytest.fixture(params=["prompt_token_ids", "prompt"])
def field(request):
    """Return the name of the field that holds the ids."""
    return request.param


def load(folder, *records, **options):
    path = folder / "ids.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return WorkloadSource(str(path), **options).load()


def test_token_ids(tmp_path, field):
    records = [
        {field: [1, 2, 3], "output_length": 2, "timestamp": 5},
        {field: [4], "output_length": 1, "timestamp": 9},
    ]
    requests = list(load(tmp_path, *records).requests())
    assert [request.prompt_token_ids for request in requests] == [[1, 2, 3], [4]]
    assert [request.output_tokens for request in requests] == [2, 1]
    assert [request.arrival_ms for request in requests] == [0, 4]


def test_ids_come_before_a_text_beside_them(tmp_path):
    """A text alone would need the tokenizer."""
    both = {"prompt": "hello", "prompt_token_ids": [7], "output_length": 1}
    (request,) = load(tmp_path, both, {"body": both}, max_requests=1).requests()
    assert request.prompt_token_ids == [7]


@pytest.mark.parametrize("name", ["session", "session_id", "conversation_id"])
@pytest.mark.parametrize("value", [3, "a"])
def test_a_turn_waits_for_the_one_before_it(tmp_path, field, name, value):
    def record(**more):
        return {field: [1], "output_length": 1, name: value, **more}

    first, second, third = load(tmp_path, record(), record(), record(delay=700)).requests()
    assert first.session == second.session == third.session == 0
    assert (first.think_ms, second.think_ms, third.think_ms) == (None, 0, 700)


@pytest.mark.parametrize("name", ["timestamp", "created_at", "created"])
@pytest.mark.parametrize(
    "times",
    [
        (5000, 6500),
        (1_795_572_801, 1_795_572_802.5),
        ("2026-11-25T02:13:20Z", "2026-11-25T03:13:21.5+01:00"),
    ],
)
def test_times(tmp_path, field, name, times):
    """Also of records that are out of order."""
    records = [{field: [i], "output_length": 1, name: time} for i, time in enumerate(times)]
    requests = list(load(tmp_path, *records[::-1]).requests())
    assert [request.prompt_token_ids for request in requests] == [[0], [1]]
    assert [request.arrival_ms for request in requests] == pytest.approx([0, 1500])


def test_an_answer_of_unknown_length_takes_the_option(tmp_path, field):
    workload = load(tmp_path, {field: [1]}, {field: [2], "output_length": 3}, max_output_tokens=6)
    assert [request.output_tokens for request in workload.requests()] == [6, 3]
    assert "1 answers as long as --max-output-tokens" in workload.in_words(is_timed=False)
    with pytest.raises(BadInputError, match=r"line 1: nothing says how long the answer is"):
        load(tmp_path, {field: [1]})


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ({"prompt_token_ids": [], "output_length": 1}, "prompt_token_ids must be"),
        ({"prompt_token_ids": [2**31], "output_length": 1}, "expected at most 2147483647"),
        ({"prompt_token_ids": [1.5], "output_length": 1}, "prompt_token_ids must be"),
        ({"prompt_token_ids": [1], "output_length": -1}, "output_length is -1"),
        (
            {"prompt_token_ids": [1], "output_length": 1, "timestamp": 3},
            "times must be in all records or in none",
        ),
    ],
)
def test_bad_token_ids(tmp_path, bad, complaint):
    place = re.escape(f"{tmp_path / 'ids.jsonl'}, line 2: ")
    with pytest.raises(BadInputError, match=place) as error:
        load(tmp_path, {"prompt_token_ids": [1], "output_length": 1}, bad)
    assert complaint in str(error.value)
