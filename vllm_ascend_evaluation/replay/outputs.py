# SPDX-License-Identifier: Apache-2.0
"""Files of results: whether they can be written, and what they may replace."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from vllm_ascend.command_line.bad_input import BadInputError


def check_folder(out: Path, files: Mapping[str, Path | None]) -> None:
    """Check that a folder of results can be made, and that every file has a place.

    Args:
        out: ``--out``.
        files: Option -> file that may lie elsewhere, in a folder that is there; ``None`` is passed
            over.

    Raises:
        BadInputError: Something is in the way, or a file's folder is not there.
    """
    _check_folder("--out", out)
    for option, file in _given(files).items():
        is_inside = file.parent.resolve().is_relative_to(out.resolve())
        if not is_inside and not file.parent.is_dir():
            raise BadInputError(f"{option} {file}: there is no folder {file.parent}")
    _check_files({"--out": out / "report.json", **files})


def prepare_folder(out: Path, files: Mapping[str, Path | None]) -> None:
    """Make a folder for results as :func:`check_folder` checks it, and folders below it.

    Raises:
        BadInputError: As of :func:`check_folder`; nothing was made.
    """
    check_folder(out, files)
    prepare_files({"--out": out / "report.json", **files})


def prepare_files(files: Mapping[str, Path | None]) -> None:
    """Make the folders of results, once every file is known to have a place.

    Args:
        files: Option -> file to write; ``None`` is passed over.

    Raises:
        BadInputError: Something is in the way; nothing was made.
    """
    _check_files(files)
    for option, file in _given(files).items():
        _make_folder(option, file.parent)


def _check_files(files: Mapping[str, Path | None]) -> None:
    for option, file in _given(files).items():
        if file.is_dir():
            raise BadInputError(f"{option} {file}: is a folder, expected a file to write")
        _check_folder(option, file.parent)


def _given(files: Mapping[str, Path | None]) -> dict[str, Path]:
    return {option: file for option, file in files.items() if file is not None}


def _make_folder(option: str, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(f"{option} {folder}: {error.strerror}") from error


def _check_folder(option: str, folder: Path) -> None:
    try:
        is_free = folder.is_dir() or not folder.exists()
        in_the_way = [parent for parent in folder.parents if parent.is_file()]
    except OSError as error:  # too long a name, no right to look
        raise BadInputError(f"{option} {folder}: {error.strerror}") from error
    if not is_free:
        raise BadInputError(f"{option} {folder}: is a file, expected a folder")
    if in_the_way:
        raise BadInputError(f"{option} {folder}: {in_the_way[0]} is a file, expected a folder")


def spare_finished(files: Sequence[Path | None], *, complete: bool) -> list[Path | None]:
    """Return where to write a report: a partial one never replaces a finished one.

    Args:
        files: Where it was asked for; the first one is JSON, whose ``complete`` tells. ``None``
            stays ``None``.
        complete: Whether the report to write is a finished one.

    Returns:
        The files; ``NAME.partial.SUFFIX`` beside each of them if they must be spared.
    """
    if complete or not _is_finished(files[0]):
        return list(files)
    return [file and partial_name(file) for file in files]


def partial_name(file: Path) -> Path:
    """Return where to keep what is not finished, beside the file that it may become."""
    return file.with_name(f"{file.stem}.partial{file.suffix}")


def _is_finished(file: Path | None) -> bool:
    try:
        assert file is not None, "a report has JSON"
        report = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(report, dict) and report.get("complete") is True
