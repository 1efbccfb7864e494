# SPDX-License-Identifier: Apache-2.0
"""What is done so far, on disk: an interrupted run goes on, another one is not mixed in."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vllm_ascend.regress.results import (
    Accuracy,
    AccuracySettings,
    Measured,
    Performance,
    PerformanceSettings,
    Target,
    read_measured,
)
from vllm_ascend.replay.report.json_file import write_json, write_whole
from vllm_ascend.replay.trace import BadInputError

_SETTINGS = "settings.json"
_FINISHED = "finished.json"
_ANSWERS = "answers.jsonl"
REPORT_JSON = "regress.json"
REPORT_HTML = "regress.html"
TOOLS = "tools"


@dataclass(frozen=True)
class Answer:
    """How one question was answered.

    Attributes:
        number: Of the question.
        letter: The answer; ``None`` if the text has none.
        is_correct: Whether it is the right one.
        is_cut: Whether the text ended at the longest answer's length.
    """

    number: int
    letter: str | None
    is_correct: bool
    is_cut: bool


class Journal:
    """The folder of a run.

    ``measured`` holds the finished steps. All changes are on disk when a method returns, and a
    process that dies at any moment leaves a folder that can be gone on with.
    """

    def __init__(self, folder: Path, target: Target, *, restart: bool) -> None:
        """Open a folder, made if there is none.

        Args:
            folder: ``--out``.
            target: The server that is measured.
            restart: Forget what was done before.

        Raises:
            BadInputError: It holds measurements of another server.
            OSError: It cannot be written.
        """
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if restart:
            self._forget()
        self._settings = self._read_settings()
        self._check("server", self._settings.get("target"), asdict(target))
        self._settings["target"] = asdict(target)
        finished = folder / _FINISHED
        self.measured = read_measured(finished, "--out") if finished.exists() else Measured(target)

    def begin(self, step: str, settings: PerformanceSettings | AccuracySettings) -> None:
        """Note with what settings a step is begun.

        Raises:
            BadInputError: It was begun before, with others.
        """
        self._check(step, self._settings.get(step), asdict(settings))
        self._settings[step] = asdict(settings)
        text = json.dumps(self._settings, indent=1) + "\n"
        write_whole(self.folder / _SETTINGS, text)

    def finish(self, step: Performance | Accuracy) -> None:
        """Keep what a step measured."""
        if isinstance(step, Performance):
            self.measured = replace(self.measured, performance=step)
        else:
            self.measured = replace(self.measured, accuracy=step)
        write_json(self.measured, self.folder / _FINISHED)

    def answers(self) -> dict[int, Answer]:
        """Return the questions answered so far, by number."""
        return {answer.number: answer for answer in self._read_answers()}

    def keep(self, answer: Answer) -> None:
        """Add the answer to a question."""
        with (self.folder / _ANSWERS).open("a", encoding="utf-8") as file:
            # One write, begun on a line of its own: the line before may lack its end.
            file.write("\n" + json.dumps(asdict(answer)) + "\n")

    def _read_answers(self) -> Iterator[Answer]:
        path = self.folder / _ANSWERS
        for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else []:
            # A line that was being written when the process ended is no JSON.
            with contextlib.suppress(ValueError, TypeError):
                yield Answer(**json.loads(line))

    def _read_settings(self) -> dict[str, Any]:
        path = self.folder / _SETTINGS
        if not path.exists():
            return {}
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise BadInputError(f"--out {self.folder}: {path.name}: {error}") from error

    def _check(self, what: str, before: dict[str, Any] | None, now: dict[str, Any]) -> None:
        differences = [
            f"{name} {before.get(name)!r}, now {value!r}"
            for name, value in now.items()
            if before is not None and before.get(name) != value
        ]
        if differences:
            raise BadInputError(
                f"--out {self.folder} holds another run ({what}: {'; '.join(differences)}): give "
                "the same settings to go on with it, another folder, or --restart"
            )

    def _forget(self) -> None:
        for name in (_SETTINGS, _FINISHED, _ANSWERS, REPORT_JSON, REPORT_HTML):
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder / TOOLS, ignore_errors=True)
