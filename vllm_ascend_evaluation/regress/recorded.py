# SPDX-License-Identifier: Apache-2.0
"""The finished run in ``--out`` that ``--rejudge`` judges: it says itself how it was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.server_access.access import base_url
from vllm_ascend_evaluation.regress.gpqa import read_questions
from vllm_ascend_evaluation.regress.journal import Journal
from vllm_ascend_evaluation.regress.options import AUTO, Description, parse_suite
from vllm_ascend_evaluation.regress.results import ACCURACY, PERFORMANCE, Measured

# Options of ``regress`` that have other names than their settings.
_SETTINGS = {"gpqa_max_tokens": "max_tokens"}


def recorded_run(out: Path, given: Mapping[str, Any]) -> Description:
    """Return what was measured, and where.

    Args:
        out: Folder of the run.
        given: Values of the options that the command line has, by the names of their parameters.

    Raises:
        BadInputError: There is no finished run, or an option says otherwise than the run; names
            the option, its value and what the run was measured with.
    """
    journal = Journal(out)
    measured, begun = journal.measured, journal.begun
    suite = parse_suite(given["suite"]) if "suite" in given else begun
    if not begun:
        raise BadInputError(f"--rejudge: {out} holds no run")
    for step in suite:
        if step not in begun:
            raise BadInputError(_contradiction("--suite", step, out, " and ".join(begun)))
        if getattr(measured, step) is None:
            raise BadInputError(
                f"--rejudge: {step} is not finished in {out}; without --rejudge it is measured"
            )
    for option, value, recorded in _pairs(given, measured, suite):
        if value != recorded:
            raise BadInputError(_contradiction(option, value, out, recorded))
    performance = measured.performance if PERFORMANCE in suite else None
    accuracy = measured.accuracy if ACCURACY in suite else None
    return Description(
        url=measured.target.url,
        performance=None if performance is None else performance.settings,
        accuracy=None if accuracy is None else accuracy.settings,
        gpqa=None,
    )


def _contradiction(option: str, value: Any, out: Path, recorded: Any) -> str:
    return f"{option} {value}: the run in {out} was measured with {recorded}"


def _pairs(
    given: Mapping[str, Any], measured: Measured, suite: list[str]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (option, value, recorded value) of each option that describes a run."""
    if "url" in given:
        yield "--url", base_url(given["url"]), measured.target.url
    if "model" in given:
        yield "--model", given["model"], measured.target.model
    for step in suite:
        settings = vars(getattr(measured, step).settings)
        for name, value in given.items():
            setting = _SETTINGS.get(name, name)
            if setting in settings and (name, value) != ("tool", AUTO):
                yield f"--{name.replace('_', '-')}", value, settings[setting]
    if "gpqa_file" in given and measured.accuracy is not None and ACCURACY in suite:
        file, digest = read_questions(given["gpqa_file"]), measured.accuracy.settings.digest
        if file.digest != digest:
            other = f"{file.path} (digest {file.digest})"
            yield "--gpqa-file", other, f"a file with the digest {digest}"
