# SPDX-License-Identifier: Apache-2.0
"""AISBench's configurations as we write them, its result files as it writes them."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ut.evaluation.regress.ais_bench_files import write_accuracy, write_performance
from tests.ut.evaluation.regress.samples import ASKING, LOAD, TARGET
from vllm_ascend_evaluation.regress.ais_bench import (
    accuracy_config,
    parse_accuracy,
    parse_performance,
    performance_config,
)

QUESTIONS = replace(ASKING, questions=4)


def read_config(text: str) -> tuple[set[str], dict[str, dict]]:
    """Return what a configuration imports, and its updates by entry."""
    tree = ast.parse(text)
    block = next(node for node in tree.body if isinstance(node, ast.With))
    imported = {node.module for node in block.body}
    calls = [node.value for node in tree.body if isinstance(node, ast.Expr)]
    updates = {ast.unparse(call.func.value): ast.literal_eval(call.args[0]) for call in calls}
    return imported, updates


def test_the_load_is_the_one_asked_for():
    imported, updates = read_config(performance_config(TARGET, LOAD, "/model"))
    assert {name.rpartition(".")[2] for name in imported} == {
        "default_perf",
        "synthetic_gen_tokenid",
        "vllm_api_general_stream",
    }
    dataset = updates["datasets[0]"]["config"]
    assert (dataset["Type"], dataset["RequestCount"]) == ("tokenid", 12)
    assert dataset["TokenIdConfig"] == {"RequestSize": 1000, "PrefixLen": 900}
    model = updates["models[0]"]
    assert (model["url"], model["model"], model["path"]) == (TARGET.url, "tiny", "/model")
    assert (model["max_out_len"], model["batch_size"]) == (8, 4)
    assert model["generation_kwargs"]["ignore_eos"] is True


def test_gpqa_is_the_chain_of_thought_one():
    text = accuracy_config(TARGET, ASKING, tokenizer="/model", questions=Path("/data/d'a.csv"))
    imported, updates = read_config(text)
    assert any(name.endswith(".gpqa_gen_0_shot_cot_chat_prompt") for name in imported)
    assert updates["datasets[0]"] == {"path": "/data", "name": "d'a.csv"}
    assert updates["models[0]"]["max_out_len"] == 100
    assert updates["models[0]"]["generation_kwargs"] == {"temperature": 0.0}


def test_a_performance_run_is_read(tmp_path):
    write_performance(tmp_path, 12)
    times = parse_performance(tmp_path, LOAD)
    assert (times.requests, times.prompt_tokens, times.output_tokens) == (12, 4683, 48)
    assert (times.ttft_avg_ms, times.ttft_p90_ms) == (193.3, 423.9)
    assert (times.tpot_avg_ms, times.tpot_p90_ms) == (25.0, 26.4)
    assert (times.output_tokens_per_s, times.seconds) == (42.6248, pytest.approx(1.1261059))


@pytest.mark.parametrize(
    "totals", [{"Failed Requests": 1}, {"Success Requests": 11}, {"Benchmark Duration": "1.1 s"}]
)
def test_a_performance_run_that_says_something_else_is_an_error(tmp_path, totals):
    write_performance(tmp_path, 12, **totals)
    with pytest.raises(ValueError, match=r"11 of 12|12 of 12|not in ms"):
        parse_performance(tmp_path, LOAD)


def test_no_result_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="not enough values"):
        parse_performance(tmp_path, LOAD)
    with pytest.raises(ValueError, match="not enough values"):
        parse_accuracy(tmp_path, QUESTIONS)


def test_an_accuracy_run_is_read(tmp_path):
    texts = ["ANSWER: D", "ANSWER: D", "no idea\u2028", "So.\nANSWER: A"]
    write_accuracy(tmp_path, texts, list("DCBA"))
    assert parse_accuracy(tmp_path, QUESTIONS) == (2, 1)


def test_a_question_that_failed_is_not_passed_over(tmp_path):
    write_accuracy(tmp_path, ["ANSWER: D", None, "x", "ANSWER: A"], list("DCBA"))
    with pytest.raises(ValueError, match="3 of 4 questions were answered"):
        parse_accuracy(tmp_path, QUESTIONS)
