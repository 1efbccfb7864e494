# SPDX-License-Identifier: Apache-2.0
"""The serving command of a Kubernetes manifest or a compose file, with its environment."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.doctor import compose, kubernetes
from vllm_ascend.doctor.bounded import load_yaml, read_bounded
from vllm_ascend.doctor.serving_command import Container, ServingCommand, find_serving_command

STANDARD_INPUT = "-"
# What a container does not have of the environment in which the doctor runs.
_OF_SERVING = re.compile(r"VLLM_\w+|PYTHONHASHSEED")


def serving_command_of(
    source: str, container: str | None, environ: Mapping[str, str]
) -> ServingCommand:
    """Return what a manifest serves.

    Args:
        source: The file, or ``-`` for standard input.
        container: Which one, if several serve: its name, or WORKLOAD/NAME.
        environ: Of this process. What a container does not have of it is left out.

    Raises:
        BadInputError: The file cannot be read, or does not say what is served in what environment,
            or says it of several containers.
    """
    option = f"--manifest {source}"
    folder = Path() if source == STANDARD_INPUT else Path(source).parent
    documents = _documents(source, option)
    shared = {name: text for name, text in environ.items() if not _OF_SERVING.fullmatch(name)}
    found: list[ServingCommand] = []
    others: list[str] = []
    try:
        for one in _containers(documents, environ, folder):
            one = Container(one.name, one.words, {**shared, **one.environ})
            command = find_serving_command(one)
            if command is None:
                others.append(f"{one.name} runs {shlex.join(one.words[:3]) or 'its image'}")
            else:
                found.append(command)
    except BadInputError as error:
        raise BadInputError(f"{option}: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInputError(
            f"{option}: neither a Kubernetes manifest nor a compose file ({error})"
        ) from error
    return _chosen(found, others, container, option)


def _containers(
    documents: list[Any], environ: Mapping[str, str], folder: Path
) -> Iterator[Container]:
    yield from kubernetes.containers(documents)
    for document in documents:
        if isinstance(document, dict) and isinstance(document.get("services"), dict):
            yield from compose.containers(document["services"], environ, folder)


def _documents(source: str, option: str) -> list[Any]:
    import yaml

    try:
        return load_yaml(read_bounded(None if source == STANDARD_INPUT else Path(source)))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise BadInputError(f"{option}: not a readable YAML file ({reason})") from error


def _chosen(
    found: list[ServingCommand], others: list[str], container: str | None, option: str
) -> ServingCommand:
    if not found:
        told = f": {'; '.join(others)}" if others else ""
        raise BadInputError(
            f"{option}: no container runs `vllm serve`{told}. Give the doctor the command itself: "
            "doctor -- vllm serve ..."
        )
    names = ", ".join(command.container for command in found)
    wanted = found
    if container is not None:
        wanted = [c for c in found if container in (c.container, c.container.rpartition("/")[2])]
    if not wanted:
        raise BadInputError(f"--container {container}: {option} has {names}")
    if len(wanted) > 1:
        raise BadInputError(f"{option}: several containers serve, say --container: {names}")
    return wanted[0]
