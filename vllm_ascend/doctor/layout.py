# SPDX-License-Identifier: Apache-2.0
"""The layout that a model would get, and what contradicts it or cannot help it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import vllm_ascend
from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.doctor import children
from vllm_ascend.doctor.findings import Finding, LayoutFacts, Severity
from vllm_ascend.doctor.layout_child import LayoutRequest
from vllm_ascend.doctor.model_config import DSV4

_PROBE = "layout"
_APPLY = "VLLM_ASCEND_APPLY_DSV4_PATCH"
_CHILD = (
    f"{children.WITHOUT_CURRENT_FOLDER}from vllm_ascend.doctor.layout_child import main; "
    "main(*sys.argv[1:])"
)


def ask_layout(
    asked: LayoutRequest, environ: Mapping[str, str], package: Path | None
) -> dict[str, Any]:
    """Let a process build a scheduler for a model.

    Args:
        asked: The model and the engine's arguments.
        environ: The environment that serving would have.
        package: The package ``vllm_ascend`` that serving would import, if any. If it is not this
            project's, or not yet, what this command runs from is asked instead, by itself.

    Returns:
        The answer of :mod:`vllm_ascend.doctor.layout_child`.

    Raises:
        BadInputError: The model's configuration cannot be used.
    """
    if not is_ours(package):
        asked = replace(asked, installs_patches=True)
        own = str(Path(str(vllm_ascend.__file__)).parents[1])
        path = os.pathsep.join(filter(None, (own, environ.get("PYTHONPATH"))))
        # No plugins: entry points of vllm-ascend would find our package instead of theirs.
        environ = {**environ, "PYTHONPATH": path, "VLLM_PLUGINS": ""}
    answer = children.ask(["-c", _CHILD, json.dumps(asdict(asked))], environ=environ)
    if "bad_input" in answer:
        raise BadInputError(answer["bad_input"])
    return answer


def is_ours(package: Path | None) -> bool:
    """Whether a package ``vllm_ascend`` is this project's, or has this project over it."""
    return package is not None and (package / "doctor" / "layout_child.py").is_file()


def layout_of(answer: Mapping[str, Any]) -> LayoutFacts | None:
    """Return the layout, if there is one."""
    return LayoutFacts.from_dict(answer["facts"]) if "facts" in answer else None


def check_layout(
    answer: Mapping[str, Any],
    asked: LayoutRequest,
    environ: Mapping[str, str],
    package: Path | None,
    *,
    knows_command: bool = False,
) -> Iterator[Finding]:
    """Yield what contradicts the model or cannot help it.

    Args:
        answer: See :func:`ask_layout`, like those that follow.
        asked: The model and the engine's arguments.
        environ: The environment that serving would have.
        package: The package ``vllm_ascend`` that serving would import, if any.
        knows_command: The whole serving command is known, and what it makes of hybrid models.
    """
    if "conflict" in answer:
        text = f"an engine would refuse this model with these settings: {answer['conflict']}"
        yield Finding(_PROBE, Severity.WRONG, text, "change one of the two")
    elif "died" in answer:
        text = f"the layout could not be built: {answer['died']}"
        yield Finding(_PROBE, Severity.WRONG, text, "cure what is wrong with the patches first")
    layout = layout_of(answer)
    if layout is None:
        return
    for warning in layout.warnings:
        hopeless = warning.startswith("nothing can be hit")
        severity = Severity.WRONG if hopeless else Severity.WARNING
        yield Finding(_PROBE, severity, warning)
    yield from _check_model(layout, environ)
    if not is_ours(package):
        text = "the layout is what this project would give; serving does not have it yet"
        yield Finding(_PROBE, Severity.WARNING, text, "install it, or apply the overlay")
    if asked.kv_transfer_config is not None and len(layout.groups) > 1 and not knows_command:
        yield Finding(
            _PROBE,
            Severity.WARNING,
            "with --kv-transfer-config vLLM may turn the hybrid KV cache manager off, and with it "
            "every group but one; with DeepSeek-V4 the engine then does not start",
            "serve with --no-disable-hybrid-kv-cache-manager, or give the whole command, which "
            "tells: doctor -- vllm serve ...",
        )


def _check_model(layout: LayoutFacts, environ: Mapping[str, str]) -> Iterator[Finding]:
    applies = environ.get(_APPLY) == "1"
    if layout.model == DSV4 and not applies:
        text = f"the model is DeepSeek-V4 and {_APPLY} is not 1: vllm-ascend needs it"
        yield Finding(_PROBE, Severity.WARNING, text, f"set {_APPLY}=1")
    if layout.model != DSV4 and applies:
        text = f"{_APPLY}=1 is meant for DeepSeek-V4, and the model is {layout.model}"
        yield Finding(_PROBE, Severity.WARNING, text, f"unset {_APPLY}")
