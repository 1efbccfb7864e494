# SPDX-License-Identifier: Apache-2.0
"""Services of a compose file: what they run, and in what environment."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.doctor.bounded import read_bounded
from vllm_ascend.doctor.serving_command import SERVE, Container

_INTERPOLATION = re.compile(r"\$(?:(\$)|(\w+)|\{(\w+)(?::?-([^}]*))?\})")


def containers(
    services: Mapping[str, Any], outside: Mapping[str, str], folder: Path
) -> Iterator[Container]:
    """Yield the containers of services.

    Args:
        services: The section of that name.
        outside: The environment of the one who starts them, which files refer to.
        folder: Of the compose file.

    Raises:
        BadInputError: An ``env_file`` cannot be read.
        ValueError: A command has a quotation without an end.
    """
    for name, service in services.items():
        environ = dict(_environment(service or {}, outside, folder))
        yield Container(str(name), _words(service or {}, outside), environ)


def _words(service: Mapping[str, Any], outside: Mapping[str, str]) -> list[str]:
    words: list[str] = []
    for key in ("entrypoint", "command"):
        value = service.get(key) or ()
        parts = shlex.split(value) if isinstance(value, str) else map(str, value)
        words += [_interpolated(part, outside) for part in parts]
    if words and words[0].startswith("-"):
        words = [*SERVE, *words]  # the entry point of vLLM's image
    return words


def _environment(
    service: Mapping[str, Any], outside: Mapping[str, str], folder: Path
) -> Iterator[tuple[str, str]]:
    files = service.get("env_file") or ()
    for file in [files] if isinstance(files, str | dict) else files:
        yield from _env_file(file, folder)
    entries = service.get("environment") or {}
    if not isinstance(entries, dict):
        parted = (str(entry).partition("=") for entry in entries)
        entries = {name: value if equals else None for name, equals, value in parted}
    for name, value in entries.items():
        if value is not None:
            yield str(name), _interpolated(str(value), outside)
        elif name in outside:  # a name alone is handed through
            yield str(name), outside[name]


def _env_file(file: str | Mapping[str, Any], folder: Path) -> Iterator[tuple[str, str]]:
    path = file if isinstance(file, str) else file["path"]
    try:
        lines = read_bounded(folder / path).splitlines()
    except (OSError, ValueError) as error:
        if isinstance(file, dict) and file.get("required") is False:
            return
        raise BadInputError(f"env_file {path} cannot be read ({error})") from error
    for line in map(str.strip, lines):
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            yield name.strip(), value.strip().strip("'\"")


def _interpolated(text: str, outside: Mapping[str, str]) -> str:
    """Put values in the places of ``$NAME`` and ``${NAME:-default}``; ``$$`` is a dollar."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] else outside.get(match[2] or match[3]) or match[4] or ""

    return _INTERPOLATION.sub(value, text)
