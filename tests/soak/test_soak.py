# SPDX-License-Identifier: Apache-2.0
"""The soak itself: the same episodes wherever they run, and cases that it once found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.soak import __main__ as soak_command
from tests.soak import episode
from tests.soak.__main__ import app
from tests.soak.case import Case, Recording
from tests.soak.draw import draw
from tests.soak.names import FEATURES
from tests.soak.operations import IMAGE, STREAM, Add, Segment, cut
from tests.soak.pool import Soak
from tests.soak.summary import Summary

CASES = sorted((Path(__file__).parent / "cases").glob("*.json"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_what_was_found_once_stays_right(path: Path) -> None:
    recording = Recording.load(path)
    failure = episode.replay(recording.case, recording.operations)
    assert failure is None, failure.text


def test_an_episode_is_the_same_again(tmp_path: Path) -> None:
    first, second = (episode.run(5, 2) for _ in range(2))
    assert first == second
    assert first.counts["steps"] > 50


def test_a_case_survives_its_file(tmp_path: Path) -> None:
    for number in range(10):
        case = episode.draw(6, number)
        operations = (Add("r1", (Segment(IMAGE, 1, 4), Segment(STREAM, 9, 3)), 5, embeds=True),)
        recording = Recording("6-0", case, operations, "why")
        recording.save(tmp_path / "case.json")
        assert Recording.load(tmp_path / "case.json") == recording


def test_what_is_no_case_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_text('{"name": "x"}')
    with pytest.raises(ValueError, match=r"case\.json is no recording"):
        Recording.load(path)


def test_prompts_are_not_cut_inside_images() -> None:
    prompt = (Segment(STREAM, 1, 5), Segment(IMAGE, 2, 4), Segment(STREAM, 3, 2))
    assert cut(prompt, 7) == prompt[:1]
    assert cut(prompt, 9) == prompt[:2]
    assert cut(prompt, 10) == (*prompt[:2], Segment(STREAM, 3, 1))


def test_a_feature_that_was_never_on_fails_a_long_run() -> None:
    summary = Summary(0)
    summary.counts["steps"] = 1_000_000
    summary.feature_steps.update(dict.fromkeys(FEATURES[1:], 1))
    assert summary.missing == [FEATURES[0]] and not summary.is_good
    summary.feature_steps[FEATURES[0]] = 1
    assert summary.is_good
    summary.counts["steps"] = 100
    summary.feature_steps.clear()
    assert summary.is_good, "a short run need not meet everything"


def test_a_case_that_cannot_be_drawn_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(seed: int, number: int) -> Case:
        raise ValueError("nobody has heard of this")

    monkeypatch.setattr(episode, "draw", refuse)
    result = episode.run(0, 0)
    assert result.failure is not None and result.recording is None


def test_the_command_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["--seed", "4", "--steps", "300", "--jobs", "1", "--out", str(tmp_path)]
    )
    assert result.exit_code == 0, result.output
    assert "scheduled steps verified" in result.output
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["seed"] == 4 and summary["steps"] >= 300 and not summary["failures"]


def test_without_a_terminal_it_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak_command, "_SECONDS_BETWEEN_LINES", 0)

    def run(soak: Soak, *args: object) -> Summary:
        summary = Summary(0)
        for _ in range(2):
            summary.episodes += 1
            soak._on_progress(summary)
        return summary

    monkeypatch.setattr(Soak, "run", run)
    output = CliRunner().invoke(app, ["--out", str(tmp_path)]).output
    assert "0 steps, 1 episodes, 0 failures\n0 steps, 2 episodes, 0 failures\n" in output


def test_an_interrupted_soak_leaves_the_summary_of_a_finished_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = tmp_path / "summary.json"
    finished.write_text("of a finished one")
    summary = Summary(0)
    summary.interrupted = True
    monkeypatch.setattr(Soak, "run", lambda *args: summary)
    assert CliRunner().invoke(app, ["--out", str(tmp_path)]).exit_code == 130
    assert finished.read_text() == "of a finished one"
    assert json.loads((tmp_path / "summary.partial.json").read_text())["interrupted"]


def test_a_file_in_place_of_the_folder_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    result = CliRunner().invoke(app, ["--out", str(file)])
    assert result.exit_code == 2
    assert result.output == f"error: --out {file}: is a file, expected a folder\n"


def test_a_pool_holds_what_a_request_is_let_in_with() -> None:
    """This one was once drawn with 220 blocks, where 221 were asked for."""
    case = draw(20261123, 2994)
    assert case.options.num_blocks is not None and case.options.num_blocks > 234
