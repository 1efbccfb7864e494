# SPDX-License-Identifier: Apache-2.0
"""Medians over rounds, ratios within a round, and the page that they are written into."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.microscope.cases import Case
from benchmarks.microscope.figures import Figures
from benchmarks.microscope.page import BEGIN, END, write_page
from benchmarks.microscope.tables import markdown, milliseconds, sheets, summary

CASES = [Case("schedule", 8192, running) for running in (1, 16, 64)]
CASE = CASES[0]


@pytest.fixture
def figures() -> Figures:
    def rounds(*times: float) -> list:
        return [{case.name: {"ms": time} for case in CASES} for time in times]

    machine = {"processor": "p", "cores": "2", "Python": "3", "vLLM": "0", "load average": "1"}
    # The machine was twice as slow in the second round, and nearly so in the third.
    return Figures(machine, {"stock": rounds(1.0, 2.0, 1.9), "unset": rounds(1.1, 2.0, 2.1)})


def test_a_ratio_is_taken_within_a_round(figures: Figures) -> None:
    assert figures.ms("unset", CASE) == 2.0
    assert figures.ratio("unset", "stock", CASE) == 1.1


def test_figures_are_what_was_written(figures: Figures, tmp_path: Path) -> None:
    figures.write(tmp_path / "out" / "speed.json")
    assert Figures.read(tmp_path / "out" / "speed.json") == figures


def test_a_row_has_times_and_ratios(figures: Figures) -> None:
    (sheet,) = sheets(figures)
    assert sheet.head == ("ms (ratio to stock)", "1x8K", "16x8K", "64x8K")
    assert sheet.rows[1] == ("ours unset, GPU layout", *["2.00 (1.10)"] * 3)
    assert markdown(sheet).splitlines()[1] == "|---|---:|---:|---:|"


def test_a_page_has_the_largest_prompt_and_a_step(figures: Figures) -> None:
    for side, rounds in figures.samples.items():
        for number, sample in enumerate(rounds):
            sample[Case("free", 1 << 20).name] = {"ms": 4.0 if side == "stock" else 2.0 + number}
            sample[Case("free", 8192).name] = {"ms": 9.0}
    prompt, step = summary(figures)
    assert prompt.title == "A prompt of 1,048,576 tokens"
    assert prompt.head == (
        "ms (ratio to stock)",
        "stock vLLM, GPU layout",
        "ours unset, GPU layout",
    )
    assert prompt.rows == (("Free a prompt's blocks", "4.00", "3.00 (0.75)"),)
    assert step.title == "schedule(), a step in which every request decodes"


def test_what_was_found_stands_beside_the_time() -> None:
    case = Case("look_up_full", 8192)
    samples = {"stock": [{case.name: {"ms": 1.0, "hit_tokens": 7936}}]}
    time, found = sheets(Figures({}, samples))
    assert time.rows == (("stock vLLM, GPU layout", "1.00"),)
    assert (found.head, found.rows) == (("tokens", "8K"), (("stock vLLM, GPU layout", "7,936"),))


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0.00834, "0.0083"),
        (0.0834, "0.083"),
        (0.834, "0.83"),
        (8.34, "8.34"),
        (83.41, "83.41"),
        (8341.0, "8,341"),
    ],
)
def test_milliseconds_have_as_many_digits_as_mean_something(ms: float, text: str) -> None:
    assert milliseconds(ms) == text


def test_only_what_stands_between_the_marks_is_replaced(figures: Figures, tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        write_page(figures, page)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert text.count("2.00 (1.10)") == 3
    assert (tmp_path / "images" / "speed.png").stat().st_size > 3_000


def test_a_page_without_marks_is_left_alone(figures: Figures, tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    page.write_text("before")
    with pytest.raises(ValueError, match=r"speed\.md: there is no <!-- measured: begin -->"):
        write_page(figures, page)
    assert page.read_text() == "before"
