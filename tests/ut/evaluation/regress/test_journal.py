# SPDX-License-Identifier: Apache-2.0
"""A run goes on where it ended, and only that run."""

import json
from dataclasses import replace

import pytest

from tests.ut.evaluation.regress.samples import (
    ASKING,
    LOAD,
    TARGET,
    accuracy,
    load_with,
    performance,
)
from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.regress.hit_counts import OUR_HITS
from vllm_ascend_evaluation.regress.journal import Answer, Journal
from vllm_ascend_evaluation.regress.results import LOOK_UPS, Measured, read_measured
from vllm_ascend_evaluation.replay.report.json_file import write_json


def reopen(folder, target=TARGET, *, restart=False):
    journal = Journal(folder, restart=restart)
    journal.open(target)
    return journal


def test_finished_steps_are_kept(tmp_path):
    first = reopen(tmp_path / "a" / "b")
    first.begin("performance", LOAD)
    first.finish(performance())
    second = reopen(tmp_path / "a" / "b")
    assert second.measured == first.measured == Measured(TARGET, performance())
    second.begin("performance", LOAD)
    second.begin("accuracy", ASKING)
    second.finish(accuracy())
    assert reopen(tmp_path / "a" / "b").measured == Measured(TARGET, performance(), accuracy())


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"input_tokens": 1001}, "input_tokens 1000, now 1001"),
        ({"tool": "ais_bench"}, "tool 'vllm', now 'ais_bench'"),
    ],
)
def test_other_settings_are_refused(tmp_path, change, what):
    reopen(tmp_path).begin("performance", LOAD)
    with pytest.raises(BadInputError, match=rf"--out .*performance: {what}.*--restart"):
        reopen(tmp_path).begin("performance", replace(LOAD, **change))


def test_another_server_is_refused(tmp_path):
    reopen(tmp_path).begin("performance", LOAD)
    with pytest.raises(BadInputError, match="server: model 'tiny', now 'other'"):
        reopen(tmp_path, replace(TARGET, model="other"))


def test_a_server_that_does_not_say_when_it_started_is_no_other_one_s_equal(tmp_path):
    silent = replace(TARGET, started="")
    reopen(tmp_path, silent).begin("performance", LOAD)
    with pytest.raises(BadInputError, match=r"does not say when it started.*--same-server"):
        reopen(tmp_path, silent)
    with pytest.raises(BadInputError, match="started '', now '2026-"):
        reopen(tmp_path)
    Journal(tmp_path).open(silent, same_server=True)


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match=r"--out .*file: is a file, not a folder"):
        Journal(tmp_path / "file")
    with pytest.raises(BadInputError, match=r"--out .*x: Not a directory"):
        reopen(tmp_path / "file" / "x")


def test_restart_forgets_what_was_measured_and_nothing_else(tmp_path):
    """Nor the finished report, which stays until there is another one."""
    for name in ("mine.txt", "regress.json"):
        (tmp_path / name).write_text("")
    journal = reopen(tmp_path)
    journal.begin("accuracy", ASKING)
    journal.keep(Answer(1, "A", True, False))
    journal.finish(accuracy())
    (tmp_path / "tools" / "x").mkdir(parents=True)
    fresh = reopen(tmp_path, replace(TARGET, model="other"), restart=True)
    assert fresh.answers() == {} and fresh.measured.accuracy is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", "regress.json"]


def test_restart_mends_a_folder_that_cannot_be_read(tmp_path):
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(BadInputError, match=r"--out .*: settings\.json: "):
        Journal(tmp_path)
    assert reopen(tmp_path, restart=True).measured == Measured(TARGET)


def test_answers_survive_a_line_that_was_not_finished(tmp_path):
    answers = [
        Answer(1, "A", True, False),
        Answer(2, None, False, True),
        Answer(3, "B", True, False),
    ]
    journal = reopen(tmp_path)
    for answer in answers[:2]:
        journal.keep(answer)
    file = tmp_path / "answers.jsonl"
    whole = file.read_bytes()
    for cut in range(1, len(json.dumps(vars(answers[1]))) + 2):
        file.write_bytes(whole[:-cut])
        assert set(reopen(tmp_path).answers()) in ({1}, {1, 2})
        reopen(tmp_path).keep(answers[2])
        assert reopen(tmp_path).answers()[3] == answers[2]


def test_a_report_or_a_baseline_is_read_back(tmp_path):
    whole = Measured(TARGET, performance(), accuracy())
    write_json(whole, tmp_path / "baseline.json")
    assert read_measured(tmp_path / "baseline.json", "--baseline") == whole
    data = json.loads((tmp_path / "baseline.json").read_text())
    assert data["performance"]["loads"][0]["cache"]["hit_rate_percent"] == 75
    assert data["accuracy"]["percent"] == pytest.approx(85.8586, abs=1e-4)


@pytest.mark.parametrize("schema", [1, 2])
def test_a_baseline_from_an_earlier_version_is_read(tmp_path, schema):
    """Schema 1 had no list of loads; both took the hits from look-ups."""
    data = Measured(TARGET, performance(), accuracy()).to_dict()
    step = data["performance"]
    cache = step["loads"][0]["cache"]
    cache["query_tokens"] = cache.pop("prompt_tokens")
    del cache["source"]
    if schema == 1:
        (load,) = step.pop("loads")
        step.update(load, settings=without_how_often(step["settings"]))
    (tmp_path / "b.json").write_text(json.dumps({**data, "schema_version": schema}))
    read = read_measured(tmp_path / "b.json", "--baseline")
    (load,) = read.performance.loads
    assert load.cache.source == LOOK_UPS
    assert replace(load, cache=replace(load.cache, source=OUR_HITS)) == performance().loads[0]
    assert (read.target, read.accuracy) == (TARGET, accuracy())


@pytest.mark.parametrize("loads", [None, 3, [3], [{"cache": 3}], [{}], {"cache": {}}])
def test_a_spoilt_file_of_an_earlier_version_is_refused(tmp_path, loads):
    data = Measured(TARGET, performance(), accuracy()).to_dict()
    data["performance"]["loads"] = loads
    (tmp_path / "b.json").write_text(json.dumps({**data, "schema_version": 2}))
    with pytest.raises(BadInputError, match=r"--baseline .*b\.json: performance\.loads"):
        read_measured(tmp_path / "b.json", "--baseline")


def without_how_often(settings):
    return {name: value for name, value in settings.items() if name not in ("warmup", "repeats")}


def test_loads_survive_a_line_that_was_not_finished(tmp_path):
    journal = reopen(tmp_path)
    loads = [load_with(ttft_avg_ms=1.5), load_with(tpot_avg_ms=None)]
    for load in loads:
        journal.keep_load(load)
    assert reopen(tmp_path).loads() == loads
    file = tmp_path / "loads.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    reopen(tmp_path).keep_load(loads[1])
    assert reopen(tmp_path).loads() == loads


def spoil(data, place, value):
    *path, last = place.split(".")
    for name in path:
        data = data[int(name) if name.isdigit() else name]
    data[last] = value


@pytest.mark.parametrize(
    ("place", "value", "what"),
    [
        (
            "performance.loads.0.times.ttft_avg_ms",
            "fast",
            r"performance\.loads\.0\.times\.ttft_avg_ms: .*number",
        ),
        ("performance.loads.0.times.ttft_avg_ms", -1, "greater than or equal to 0"),
        ("performance.loads.0.times.ttft_avg_ms", float("nan"), "finite"),
        ("performance.loads.0.cache", None, r"performance\.loads\.0\.cache"),
        ("performance.loads", [], "at least 1"),
        ("accuracy.correct", 199, "199 of 198 questions are right"),
        ("accuracy.settings.questions", 0, "greater than or equal to 1"),
        ("schema_version", 9, "schema_version 9, expected 4"),
        ("target", [], "target"),
    ],
)
def test_a_spoilt_file_is_refused(tmp_path, place, value, what):
    data = Measured(TARGET, performance(), accuracy()).to_dict()
    spoil(data, place, value)
    (tmp_path / "b.json").write_text(json.dumps(data))
    with pytest.raises(BadInputError, match=rf"--baseline .*b\.json: .*{what}"):
        read_measured(tmp_path / "b.json", "--baseline")


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"a": 1}'])
def test_another_file_is_refused(tmp_path, text):
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(BadInputError, match=r"--baseline .*b\.json: "):
        read_measured(tmp_path / "b.json", "--baseline")
