# SPDX-License-Identifier: Apache-2.0
"""The file of a cost model: what is read back, and what is refused."""

import json

import pytest

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.cost.model import CostModel
from vllm_ascend_evaluation.replay.cost.stored import (
    StoredCostModel,
    layout_key,
    read_cost_model,
)

MODEL = CostModel(12.0, 40.0, 150.0, 3.0, 2.0, 25.0)


def written(tmp_path, **changes):
    path = tmp_path / "cost.json"
    content = json.loads(StoredCostModel(MODEL, "dsv4-flash-a3", host="h", vllm="1").to_json())
    path.write_text(json.dumps(content | changes))
    return path


def test_what_is_written_is_read(tmp_path):
    assert read_cost_model(written(tmp_path), "dsv4-flash-a3") == MODEL


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cost_model_version": 1}, "cost.json: version 1; this release reads 2"),
        ({"layout": "dsv4-flash-gpu"}, "fitted to layout dsv4-flash-gpu, and --layout is dsv4"),
        ({"model": {"step_ms": 1.0}}, "expected the terms step_ms, token_us"),
        ({"model": {**vars(MODEL), "token_us": -1}}, "token_us is -1; expected a number"),
        ({"model": {**vars(MODEL), "token_us": "40"}}, "token_us is '40'; expected a number"),
        ({"model": dict.fromkeys(vars(MODEL), 0)}, "no step would take any time"),
    ],
)
def test_another_file_is_refused(tmp_path, changes, said):
    with pytest.raises(BadInputError) as refused:
        read_cost_model(written(tmp_path, **changes), "dsv4-flash-a3")
    assert said in str(refused.value) and str(refused.value).startswith("--cost-model ")


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "cannot be read as JSON"), ("[]", "no cost model"), ('{"a": 1}', "no cost model")],
)
def test_what_is_no_cost_model_is_refused(tmp_path, text, said):
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(BadInputError, match=said):
        read_cost_model(tmp_path / "other.json", "dsv4-flash-a3")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(BadInputError, match=r"none\.json: cannot be read"):
        read_cost_model(tmp_path / "none.json", "dsv4-flash-a3")


def test_a_layout_of_a_file_is_known_by_what_is_in_it(tmp_path):
    one, two, folder = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "folder"
    folder.mkdir()
    one.write_text('{"model_type": "gemma3", "x": 1}')
    two.write_text('{"model_type": "gemma3", "x": 2}')
    (folder / "config.json").write_text('{"x": 1, "model_type": "gemma3"}')
    assert layout_key(str(one)).startswith("gemma3:")
    assert layout_key(str(one)) == layout_key(str(folder)) != layout_key(str(two))
    assert layout_key("dsv4-flash-a3") == "dsv4-flash-a3"
