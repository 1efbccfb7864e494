# SPDX-License-Identifier: Apache-2.0
"""Questions are read as GPQA writes them; answers as models write them."""

import csv

import pytest

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.regress.gpqa import find_answer, read_questions

HEADING = [*("-" * 7), "Question", "Correct Answer", *("Incorrect Answer",) * 3, "Explanation"]


def write(path, *rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


def row(number, *choices):
    return [*("x" * 7), f"question {number},\nsecond line", *(choices or "wxyz"), "because"]


def test_letters_are_rotated_as_ais_bench_does(tmp_path):
    """AISBench's order: ABCD, BCDA, CDAB, DABC, beginning with the second."""
    file = read_questions(write(tmp_path / "q.csv", HEADING, *map(row, range(1, 6))))
    assert [question.answer for question in file.questions] == ["D", "C", "B", "A", "D"]
    lines = file.questions[0].prompt.splitlines()
    assert lines[-4:] == ["A) x", "B) y", "C) z", "D) w"]
    assert "question 1,\nsecond line" in file.questions[0].prompt
    assert [question.number for question in file.questions] == [1, 2, 3, 4, 5]


def test_the_right_choice_is_behind_the_answers_letter(tmp_path):
    rows = [row(i, "right", "wrong 1", "wrong 2", "wrong 3") for i in range(8)]
    for question in read_questions(write(tmp_path / "q.csv", *rows)).questions:
        assert f"{question.answer}) right" in question.prompt


def test_the_digest_is_the_files(tmp_path):
    one = read_questions(write(tmp_path / "1.csv", HEADING, row(1)))
    same = read_questions(write(tmp_path / "2.csv", HEADING, row(1)))
    other = read_questions(write(tmp_path / "3.csv", HEADING, row(2)))
    assert one.digest == same.digest != other.digest


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([HEADING], "there is no question"),
        ([HEADING, row(1), row(2)[:11]], "line 5: expected GPQA's columns"),
        ([HEADING, row(1, "w", "", "y", "z")], "line 3: expected GPQA's columns"),
    ],
)
def test_another_format_is_refused(tmp_path, rows, what):
    with pytest.raises(BadInputError, match=rf"--gpqa-file .*q\.csv.*{what}"):
        read_questions(write(tmp_path / "q.csv", *rows))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(BadInputError, match=r"--gpqa-file .*none\.csv: .*No such file"):
        read_questions(tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes(b"\xff" * 20)
    with pytest.raises(BadInputError, match=r"--gpqa-file .*latin\.csv: .*decode"):
        read_questions(tmp_path / "latin.csv")


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("So it must be.\nANSWER: C", "C"),
        ("answer:b", "B"),
        ("ANSWER: A? No.\n**ANSWER: D**", "D"),
        ("ANSWER: **B**", "B"),
        ("ANSWER : C.", "C"),
        ("The ANSWER: Because of that, none", None),
        ("ANSWER: E", None),
        ("A", None),
        ("", None),
    ],
)
def test_the_last_answer_counts(text, letter):
    assert find_answer(text) == letter
