# SPDX-License-Identifier: Apache-2.0
"""The traffic of the tuning guide is what the guide says it is."""

from __future__ import annotations

import json
from itertools import pairwise, takewhile
from pathlib import Path

import pytest
import typer

from benchmarks.traffic import TRAFFIC, Tokens, main


def prompts(name: str) -> list[list[int]]:
    return [exchange.prompt for exchange in TRAFFIC[name](Tokens(0))]


def num_shared(prompts: list[list[int]]) -> int:
    """Return how many tokens all prompts begin with."""
    return sum(
        1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, zip(*prompts, strict=False))
    )


def test_an_agents_turn_repeats_the_turns_before_it() -> None:
    turns = prompts("agents")[3::16]
    for before, after in pairwise(turns):
        assert after[: len(before)] == before
        assert len(after) == len(before) + 1_200


def test_all_agents_begin_with_the_same_tools() -> None:
    first = prompts("agents")[:16]
    assert num_shared(first) == 6_000


def test_a_resent_prefix_is_followed_by_fresh_tails() -> None:
    sent = prompts("resent")
    assert [len(prompt) for prompt in sent[:4]] == [12_000, 19_000, 26_000, 40_000]
    assert num_shared(sent[1:]) == 12_000


def test_questions_about_a_document_stand_behind_it() -> None:
    documents = {tuple(prompt[700:-300]) for prompt in prompts("rag")}
    assert len(documents) == 24


def test_a_million_tokens_share_99_percent() -> None:
    assert num_shared(prompts("million")) == 1_013_760


@pytest.mark.parametrize("name", ["resent", "tiny"])
def test_the_same_name_gives_the_same_file(name: str, tmp_path: Path) -> None:
    for file in ("one", "two"):
        main(name, tmp_path / file, seed=0)
    assert (tmp_path / "one").read_text() == (tmp_path / "two").read_text()
    line = json.loads((tmp_path / "one").read_text().splitlines()[0])
    assert set(line) == {"prompt_token_ids", "output_length"}


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="'chat' is unknown: allowed are agents, resent"):
        main("chat", tmp_path / "file")
