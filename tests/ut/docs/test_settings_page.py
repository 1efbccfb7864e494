# SPDX-License-Identifier: Apache-2.0
"""The settings pages: every variable, in both languages, never behind the code."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tools import settings_page
from tools.generated import write_or_check
from tools.settings_page import StaleTranslationError, chinese_effect, render
from tools.settings_zh import EFFECTS
from vllm_ascend.prefix_cache_config import VARIABLES

ENGLISH, CHINESE = "settings.md.j2", "settings.zh.md.j2"


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: variable.name)
def test_every_variable_is_on_both_pages(variable) -> None:
    assert f"| `{variable.name}`<br>{variable.effect} |" in render(ENGLISH, chinese=False)
    translated = f"| `{variable.name}`<br>{chinese_effect(variable)} |"
    assert translated in render(CHINESE, chinese=True)


def test_nothing_is_translated_that_is_no_variable() -> None:
    assert set(EFFECTS) == {variable.name for variable in VARIABLES}


def test_a_variable_without_a_translation_is_refused() -> None:
    with pytest.raises(StaleTranslationError, match="VLLM_NEW: add its effect"):
        chinese_effect(replace(VARIABLES[0], name="VLLM_NEW"))


def test_a_translation_of_another_sentence_is_refused() -> None:
    with pytest.raises(StaleTranslationError, match=f"{VARIABLES[0].name}: its effect has changed"):
        chinese_effect(replace(VARIABLES[0], effect="Something else."))


def test_the_profile_shows_what_it_switches_on() -> None:
    page = render(ENGLISH, chinese=False)
    (spare,) = re.findall(r"`VLLM_ASCEND_SPARE_TAILS`<br>[^|]*(.*)", page)
    assert spare == "| `0`, `1` | `0` | `1` |"
    (interval,) = re.findall(r"`VLLM_PREFIX_CACHE_RETENTION_INTERVAL`<br>[^|]*(.*)", page)
    assert interval == "| `auto`, `0`, `N` | unset | `auto` |"


def test_errors_are_the_ones_that_the_code_gives() -> None:
    page = render(ENGLISH, chinese=False)
    assert "VLLM_ASCEND_DSV4_PARTIAL_HITS='yes' is invalid: allowed are 0 and 1" in page


def test_a_mistake_that_is_none_is_refused() -> None:
    with pytest.raises(AssertionError, match="is no mistake"):
        settings_page._refusal("VLLM_ASCEND_SPARE_TAILS", "1")


def test_a_stale_file_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tools.generated.DOCS", tmp_path)
    texts = {tmp_path / "page.md": "new"}
    assert write_or_check(texts, ["--check"], description="", make="docs-pages") == 1
    assert "page.md is stale: run `make docs-pages`" in capsys.readouterr().err
    assert write_or_check(texts, [], description="", make="docs-pages") == 0
    assert write_or_check(texts, ["--check"], description="", make="docs-pages") == 0
