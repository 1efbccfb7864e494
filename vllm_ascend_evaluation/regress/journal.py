# SPDX-License-Identifier: Apache-2.0
"""What is done so far, on disk: an interrupted run goes on, another one is not mixed in."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.server_access.server import Target
from vllm_ascend_evaluation.regress.results import (
    ACCURACY,
    PERFORMANCE,
    Accuracy,
    AccuracySettings,
    Load,
    Measured,
    Performance,
    PerformanceSettings,
    load_from_json,
    load_to_json,
    read_measured,
)
from vllm_ascend_evaluation.replay.report.json_file import write_json, write_whole

T = TypeVar("T")

_SETTINGS = "settings.json"
_FINISHED = "finished.json"
_ANSWERS = "answers.jsonl"
_LOADS = "loads.jsonl"
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
    process that dies at any moment leaves a folder that can be gone on with. A finished report
    stays until the next one takes its place.
    """

    def __init__(self, folder: Path, *, restart: bool = False) -> None:
        """Read a folder; nothing is written yet.

        Args:
            folder: ``--out``; need not be there.
            restart: Pass over what is in it, which :meth:`open` then removes.

        Raises:
            BadInputError: It is no folder, or what is in it cannot be read.
        """
        if folder.exists() and not folder.is_dir():
            raise BadInputError(f"--out {folder}: is a file, not a folder")
        self.folder = folder
        self._restart = restart
        self._settings: dict[str, Any] = {} if restart else self._read_settings()
        finished = folder / _FINISHED
        self.measured = Measured(Target("", ""))
        if finished.exists() and not restart:
            self.measured = read_measured(finished, "--out")

    def open(self, target: Target, *, same_server: bool = False) -> None:
        """Begin or go on with a run.

        Args:
            target: The server that is to be measured.
            same_server: The user says that it is the server of before, where it does not.

        Raises:
            BadInputError: The folder holds measurements of another server, or of one that need
                not be this one; or it cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self._restart:
                self._forget()
        except OSError as error:
            raise BadInputError(f"--out {self.folder}: {error.strerror}") from error
        before = self._settings.get("target")
        self._check("server", before, asdict(target))
        if before is not None and not target.started and not same_server:
            raise BadInputError(
                f"--out {self.folder} holds an interrupted run, and {target.url} does not say when "
                "it started, so it may be another server: --same-server if it is not, --restart "
                "to measure anew"
            )
        self._settings["target"] = asdict(target)
        self.measured = replace(self.measured, target=target)

    @property
    def begun(self) -> list[str]:
        """The steps that were begun, finished or not."""
        return [step for step in (PERFORMANCE, ACCURACY) if step in self._settings]

    def check(self, step: str, settings: PerformanceSettings | AccuracySettings) -> None:
        """Check that a step, if it was begun before, was begun with these settings.

        Raises:
            BadInputError: It was not.
        """
        self._check(step, self._settings.get(step), asdict(settings))

    def begin(self, step: str, settings: PerformanceSettings | AccuracySettings) -> None:
        """Note with what settings a step is begun; see :meth:`check`."""
        self.check(step, settings)
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
        answers = self._read(_ANSWERS, lambda line: Answer(**json.loads(line)))
        return {answer.number: answer for answer in answers}

    def keep(self, answer: Answer) -> None:
        """Add the answer to a question."""
        self._add(_ANSWERS, json.dumps(asdict(answer)))

    def loads(self) -> list[Load]:
        """Return the loads put so far, those for warming up first."""
        return list(self._read(_LOADS, load_from_json))

    def keep_load(self, load: Load) -> None:
        """Add a load."""
        self._add(_LOADS, load_to_json(load))

    def _add(self, name: str, line: str) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            # One write, begun on a line of its own: the line before may lack its end.
            file.write("\n" + line + "\n")

    def _read(self, name: str, parse: Callable[[str], T]) -> Iterator[T]:
        path = self.folder / name
        for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else []:
            # A line that was being written when the process ended is no JSON.
            with contextlib.suppress(ValueError, TypeError):
                yield parse(line)

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
                f"--out {self.folder} holds another run ({what}: {'; '.join(differences)}): go on "
                "with that one, take another folder, or --restart"
            )

    def _forget(self) -> None:
        for name in (_SETTINGS, _FINISHED, _ANSWERS, _LOADS):
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder / TOOLS, ignore_errors=True)
