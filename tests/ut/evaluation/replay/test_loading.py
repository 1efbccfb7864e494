# SPDX-License-Identifier: Apache-2.0
"""Files as a command takes them: with times or without, and less than all of them."""

import json
import re

import pytest

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.commands import load_workloads
from vllm_ascend_evaluation.replay.http.prompts import PromptShape, fit
from vllm_ascend_evaluation.replay.sources import WorkloadSource

OWN = {"prompt": [1, 2, 3], "max_tokens": 4}
FORMS = {
    "own traffic": OWN,
    "token ids": {"prompt_token_ids": [1, 2, 3], "output_length": 4},
    "Mooncake": {"hash_ids": [0], "input_length": 3, "output_length": 4},
}


def write(folder, *records):
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def load(path, **options):
    limits = {"max_model_len": 1000, **options}
    (workload,) = load_workloads([WorkloadSource(str(path))], **limits).values()
    return workload


@pytest.mark.parametrize("form", FORMS)
def test_times_in_some_records_only_do_not_matter_in_a_closed_loop(tmp_path, form):
    record = FORMS[form]
    path = write(tmp_path, record, {**record, "timestamp": 5}, record)
    assert load(path).num_requests == len(list(load(path).requests())) == 3
    # What a run reads in a process of its own is the same.
    (source,) = load_workloads([WorkloadSource(str(path))], max_model_len=1000)
    assert source.load().num_requests == 3


@pytest.mark.parametrize("form", FORMS)
def test_times_in_some_records_only_are_refused_where_they_are_used(tmp_path, form):
    record = FORMS[form]
    path = write(tmp_path, {**record, "timestamp": 5}, {**record, "timestamp": 6}, record)
    with pytest.raises(BadInputError, match=re.escape(f"{path}, line 3: ") + ".*time"):
        load(path, needs_arrivals=True)
    path.write_text(path.read_text().replace(', "timestamp": 6', ""))
    with pytest.raises(BadInputError, match=re.escape(f"{path}, line 2: ") + ".*time"):
        load(path, needs_arrivals=True)


def test_what_is_assumed_is_counted_in_what_is_replayed(tmp_path):
    long = {**OWN, "prompt": [1] * 20}
    told = {**OWN, "usage": {"completion_tokens": 2}}
    workload = load(write(tmp_path, OWN, long, told, long, OWN), max_model_len=15)
    assert workload.num_requests == 3
    assert workload.in_words(is_timed=False) == (
        "5 requests of log.jsonl; 2 longer than 15 left out; 32 at a time; "
        "2 answers as long as their max_tokens"
    )
    sent = fit(load(tmp_path / "log.jsonl"), PromptShape(max_prompt_tokens=10))
    assert sent.num_dropped == 2
    assert "2 answers as long as their max_tokens" in sent.workload.in_words(is_timed=False)
