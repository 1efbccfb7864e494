# SPDX-License-Identifier: Apache-2.0
"""A serving command is judged by vLLM's own parser and its own making of a configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import vllm_ascend
from tests.release_marks import WHERE_BLOCKS_COUNT_ROWS
from tests.ut.core.checks.test_early_check import SHAPE
from vllm_ascend.doctor import command_child
from vllm_ascend.doctor.command import check_command, layout_request
from vllm_ascend.doctor.findings import Finding, Severity
from vllm_ascend.prefix_cache_config import VARIABLES
from vllm_ascend.releases import SUPPORTED, running_release

APPLY = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1"}
BEST = {**APPLY, "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
DOCTOR_PAGE = Path(__file__).parents[3] / "docs" / "doctor.md"
DECLARES_ROWS = "FakeConnector"
KEEP_HYBRID = "--no-disable-hybrid-kv-cache-manager"


def transfer(connector: str) -> tuple[str, str]:
    config = {"kv_connector": connector, "kv_role": "kv_both"}
    if connector == DECLARES_ROWS:
        config["kv_connector_module_path"] = "tests.e2e.connectors.fake_connector"
    return "--kv-transfer-config", json.dumps(config)


@pytest.fixture
def ask(monkeypatch, tmp_path):
    """Return a function that asks what an engine makes of flags, under an environment."""
    vllm_ascend.register()  # as vLLM does, while it reads the command line
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")

    def ask(
        environ: dict[str, str],
        *flags: str,
        model: str | None = None,
    ) -> dict[str, Any]:
        for variable in VARIABLES:
            monkeypatch.delenv(variable.name, raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "config.json").write_text(json.dumps(SHAPE))
        served = (str(tmp_path), "--max-model-len", "4096", "--skip-tokenizer-init")
        request = {"flags": [*(served if model is None else ()), *flags], "model": model}
        command_child.main(json.dumps(request), str(tmp_path / "answer.json"))
        return json.loads((tmp_path / "answer.json").read_text())

    return ask


def findings(answer: dict[str, Any], environ: dict[str, str], is_hybrid: bool | None = True):
    return list(check_command(answer, environ, is_hybrid=is_hybrid))


def only(found: list[Finding]) -> Finding:
    (finding,) = found
    return finding


@WHERE_BLOCKS_COUNT_ROWS
@pytest.mark.parametrize("connector", ["NixlConnector", "MooncakeConnector"])
def test_a_connector_that_does_not_tell_rows_from_tokens_is_wrong(ask, connector):
    finding = only(findings(ask(BEST, *transfer(connector), KEEP_HYBRID), BEST))
    assert finding.severity is Severity.WRONG
    assert f"{connector} cannot be used with DeepSeek-V4" in finding.text


@WHERE_BLOCKS_COUNT_ROWS
def test_the_page_shows_what_the_doctor_says_of_a_connector(ask):
    flags = ("--block-size", "128", *transfer("NixlConnector"))
    finding = only(findings(ask(BEST, *flags), BEST))
    page = " ".join(DOCTOR_PAGE.read_text().split())
    assert f"wrong: {finding.text} -> {finding.remedy}" in page


@WHERE_BLOCKS_COUNT_ROWS
def test_a_connector_that_turns_the_hybrid_manager_off_is_wrong(ask):
    """vLLM 0.20.2 turns it off for every connector, later ones for those that know one group."""
    answer = ask(BEST, "--block-size", "128", *transfer(DECLARES_ROWS))
    if running_release() is SUPPORTED[0]:
        finding = only(findings(answer, BEST))
        assert finding.severity is Severity.WRONG
        assert f"add {KEEP_HYBRID}" in finding.text
    else:
        assert not findings(answer, BEST)


@WHERE_BLOCKS_COUNT_ROWS
def test_a_connector_beside_the_hybrid_manager_is_right(ask):
    answer = ask(BEST, "--block-size", "128", *transfer(DECLARES_ROWS), KEEP_HYBRID)
    assert not findings(answer, BEST)
    assert answer["kv_transfer_config"]["kv_connector"] == DECLARES_ROWS


@WHERE_BLOCKS_COUNT_ROWS
def test_a_connector_of_one_group_is_wrong_with_and_without_it(ask):
    for flags in ((), (KEEP_HYBRID,)):
        finding = only(findings(ask(BEST, *transfer("ExampleConnector"), *flags), BEST))
        assert finding.severity is Severity.WRONG
        assert "ExampleConnector" in finding.text or "Hybrid KV cache manager" in finding.text


def test_flags_that_vllm_does_not_know_are_wrong(ask):
    finding = only(findings(ask({}, "--block-sizes", "128"), {}))
    assert finding.severity is Severity.WRONG
    assert finding.text.endswith("unrecognized arguments: --block-sizes 128")


def test_flags_that_contradict_each_other_are_wrong(ask):
    finding = only(findings(ask({}, "--enable-auto-tool-choice"), {}))
    assert finding.severity is Severity.WRONG and "--tool-call-parser" in finding.text


def test_what_an_engine_cannot_do_is_wrong_in_its_own_words(ask):
    finding = only(findings(ask({}, "--max-model-len", "9999999"), {}))
    assert finding.severity is Severity.WRONG
    assert "max_model_len" in finding.text and "\n" not in finding.text


def test_the_layout_is_asked_for_what_the_command_says(ask, tmp_path):
    answer = ask(
        APPLY, "--block-size", "64", "--max-num-batched-tokens", "4096", *transfer(DECLARES_ROWS),
        KEEP_HYBRID,
    )  # fmt: skip
    asked = layout_request(answer)
    assert asked is not None and asked.kv_transfer_config is not None
    assert Path(asked.model) == tmp_path.resolve()
    assert (asked.block_size, asked.max_model_len, asked.max_num_batched_tokens) == (64, 4096, 4096)
    assert asked.num_speculative_tokens == 0


def test_drafts_without_layers_are_no_layers(ask):
    ngrams = '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}'
    asked = layout_request(ask(APPLY, "--speculative-config", ngrams))
    assert asked is not None and asked.num_speculative_tokens == 0


def test_a_configuration_file_of_the_command_is_read(ask, tmp_path):
    (tmp_path / "serve.yaml").write_text("block-size: 32\nmax-num-batched-tokens: 4096\n")
    asked = layout_request(ask(APPLY, "--config", str(tmp_path / "serve.yaml")))
    assert asked is not None
    assert (asked.block_size, asked.max_num_batched_tokens) == (32, 4096)


def test_a_model_that_lies_elsewhere_here_is_taken_from_there(ask, tmp_path):
    flags = ("/models/of/another/machine", "--skip-tokenizer-init", "--max-model-len", "4096")
    asked = layout_request(ask(APPLY, *flags, model=str(tmp_path)))
    assert asked is not None and Path(asked.model) == tmp_path.resolve()


def test_a_model_that_is_not_here_is_wrong(ask):
    answer = ask(APPLY, "/models/elsewhere", model="/models/nowhere/at/all")
    assert layout_request(answer) is None
    finding = only(findings(answer, APPLY, None))
    assert finding.severity is Severity.WRONG and "/models/nowhere/at/all" in finding.text
    assert "--model" in finding.remedy


def test_without_prefix_caching_nothing_that_the_variables_ask_for_is_done(ask):
    answer = ask(BEST, "--no-enable-prefix-caching")
    finding = only(findings(answer, BEST))
    assert finding.severity is Severity.WRONG and "prefix caching off" in finding.text
    assert not findings(answer, {})


def test_a_hybrid_without_its_manager_has_nothing_of_ours(ask):
    """Where DeepSeek-V4's layout is not asked for, as with any other hybrid, engines do start."""
    best = {"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
    answer = ask(best, "--disable-hybrid-kv-cache-manager")
    assert only(findings(answer, best)).severity is Severity.WRONG
    assert only(findings(answer, {})).severity is Severity.WARNING
    assert not findings(answer, best, is_hybrid=False)
    assert not findings(ask(best), best)


def test_a_model_whose_layout_is_not_known_is_told(ask):
    warning = only(findings(ask({}), {}, is_hybrid=None))
    assert warning.severity is Severity.WARNING and "--model" in warning.remedy


ROUTING = {"VLLM_ASCEND_DP_ROUTING": "cache"}
RANKS = ("--data-parallel-size", "2")


@pytest.mark.parametrize(
    ("environ", "flags", "severity", "says"),
    [
        (BEST, (), Severity.WARNING, "one data-parallel rank"),
        (BEST, (*RANKS, "--data-parallel-rank", "1"), Severity.WARNING, "others choose the rank"),
        (APPLY, RANKS, Severity.WRONG, "no rank tells"),
    ],
    ids=["one rank", "external", "no switch"],
)
@WHERE_BLOCKS_COUNT_ROWS
def test_a_choice_of_ranks_without_effect_is_told(ask, environ, flags, severity, says):
    environ = {**environ, **ROUTING}
    finding = only(findings(ask(environ, "--block-size", "128", *flags), environ))
    assert finding.severity is severity
    assert says in finding.text


@WHERE_BLOCKS_COUNT_ROWS
def test_a_choice_of_ranks_is_right_with_ranks_and_switches(ask):
    environ = {**BEST, **ROUTING}
    assert not findings(ask(environ, "--block-size", "128", *RANKS), environ)
