# SPDX-License-Identifier: Apache-2.0
"""GPQA questions: read from its CSV, put to a model without examples, answers read back."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from dataclasses import dataclass
from pathlib import Path

from vllm_ascend.command_line.bad_input import BadInputError

LETTERS = "ABCD"
# Columns of GPQA's files, from 0; the four choices follow the question, the right one first.
_QUESTION = 7
_END = _QUESTION + 1 + len(LETTERS)
_DIGEST_CHARACTERS = 16
_HEADING = "Question"
_ANSWER = re.compile(r"ANSWER\s*:\s*\**\s*([A-D])\b", re.IGNORECASE)
_INSTRUCTION = (
    "Choose the right answer to the question below. Reason step by step first. Then end with "
    "one line of the form 'ANSWER: X', where X is the letter of your choice (A, B, C or D)."
)


@dataclass(frozen=True)
class Question:
    """One question as it is asked.

    Attributes:
        number: Its place in the file, from 1.
        prompt: What the model is told.
        answer: Letter of the right choice.
    """

    number: int
    prompt: str
    answer: str


@dataclass(frozen=True)
class QuestionFile:
    """A file of questions.

    Attributes:
        path: The file.
        digest: SHA-256 prefix of it.
        questions: In their order; at least one.
    """

    path: Path
    digest: str
    questions: tuple[Question, ...]


def read_questions(path: Path) -> QuestionFile:
    """Read a file in GPQA's format.

    The choices of question ``n`` are rotated by ``n % 4`` places, as AISBench does: each letter is
    right equally often, and every run asks the same.

    Args:
        path: CSV with a question in column 7 (from 0), its right answer in column 8 and three
            wrong ones behind it; a row whose column 7 says "Question" is the heading.

    Raises:
        BadInputError: It cannot be read; names the line.
    """
    try:
        content = path.read_bytes()
        rows = _rows(path, content.decode())
    except (OSError, UnicodeError, csv.Error) as error:
        raise BadInputError(f"--gpqa-file {path}: {error}") from error
    questions = tuple(_question(number, *row) for number, row in enumerate(rows, 1))
    if not questions:
        raise BadInputError(f"--gpqa-file {path}: there is no question in it")
    digest = hashlib.sha256(content).hexdigest()[:_DIGEST_CHARACTERS]
    return QuestionFile(path, digest, questions)


def _rows(path: Path, text: str) -> list[list[str]]:
    """Return a question, its right answer and its wrong ones per row."""
    reader = csv.reader(io.StringIO(text, newline=""))
    rows = []
    for row in reader:
        texts = row[_QUESTION:_END]
        if len(texts) < _END - _QUESTION or not all(part.strip() for part in texts):
            raise BadInputError(
                f"--gpqa-file {path}, line {reader.line_num}: expected GPQA's columns, a question "
                f"and four answers in columns {_QUESTION} to {_END - 1} (from 0)"
            )
        if texts[0] != _HEADING:
            rows.append(texts)
    return rows


def _question(number: int, text: str, *choices: str) -> Question:
    first = number % len(LETTERS)
    rotated = choices[first:] + choices[:first]
    lines = [f"{letter}) {choice.strip()}" for letter, choice in zip(LETTERS, rotated, strict=True)]
    prompt = "\n\n".join([_INSTRUCTION, text.strip(), "\n".join(lines)])
    return Question(number, prompt, LETTERS[-first % len(LETTERS)])


def find_answer(text: str) -> str | None:
    """Return the letter that a model's text settles on: its last "ANSWER: X"; or ``None``."""
    letters = _ANSWER.findall(text)
    return letters[-1].upper() if letters else None
