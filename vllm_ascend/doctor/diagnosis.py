# SPDX-License-Identifier: Apache-2.0
"""Runs the probes and puts together what they found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_ascend.deployment import is_checkout
from vllm_ascend.doctor import children, environment, layout, overlay, patches, versions
from vllm_ascend.doctor.command import ask_command, check_command, layout_request
from vllm_ascend.doctor.findings import CommandFacts, Diagnosis, Finding
from vllm_ascend.doctor.layout_child import LayoutRequest
from vllm_ascend.doctor.serving_command import ServingCommand


@dataclass(frozen=True)
class Question:
    """What would be served.

    Attributes:
        environ: The environment that serving would have.
        command: The command, if it is known.
        model: Where the command's model lies here, if its name for it is another machine's.
        layout: The model to tell the layout for, where there is no command.
        has_connector: It would be served with a KV connector, where there is no command.
    """

    environ: Mapping[str, str]
    command: ServingCommand | None = None
    model: Path | None = None
    layout: LayoutRequest | None = None
    has_connector: bool = False


@dataclass
class _Served:
    """What processes have said of a question.

    Attributes:
        command: Of the command, if there is one.
        asked: What was asked of the layout, if anything.
        layout: Of that.
    """

    command: dict[str, Any] = field(default_factory=dict)
    asked: LayoutRequest | None = None
    layout: dict[str, Any] = field(default_factory=dict)


def diagnose(question: Question, *, checkout: Path | None = None) -> Diagnosis:
    """Run every probe.

    Args:
        question: What would be served.
        checkout: A vllm-ascend checkout to look at, instead of the one that serving imports.

    Raises:
        BadInputError: The model's configuration cannot be used.
    """
    environ = question.environ
    invalid = tuple(environment.check_values(environ))
    package = children.find_package("vllm_ascend", environ)
    with ThreadPoolExecutor(max_workers=2) as pool, children.end_together():
        serving = pool.submit(patches.ask_serving, environ)
        # An invalid value is one finding; with it no engine could be built anyway.
        answered = pool.submit(_ask, question, package) if not invalid else None
        answers = serving.result()
        served = answered.result() if answered else _Served()

    facts = overlay.overlay_facts(checkout, package)
    looked_at = Path(facts.checkout) if facts.checkout else None
    found = versions.versions(environ, vllm=patches.serving_vllm(answers), checkout=looked_at)
    has_vllm = found[0].version is not None
    rows = patches.patch_rows(answers, environ, package)
    over_checkout = package is not None and is_checkout(package)
    findings = [
        *versions.check_versions(found, over_checkout=over_checkout),
        *overlay.check_overlay(facts, environ, found[0].version),
        *invalid,
        *environment.check_empty(environ, found[1].version),
        *environment.check_interval(environ),
        *environment.check_names(environ, patches.known_variables(answers, looked_at)),
        *environment.check_hash_seed(environ, has_connector=_has_connector(question, served)),
    ]
    if has_vllm:  # or all that could be said is that
        of_serving = facts if checkout is None else overlay.overlay_facts(None, package)
        is_overlaid = of_serving.state in overlay.IN_FORCE
        findings += patches.check_package(answers, package)
        findings += patches.check_patches(answers, rows, environ, package, is_overlaid=is_overlaid)
        findings += _check_served(served, question, package)
    return Diagnosis(
        versions=found,
        overlay=facts,
        patches=rows,
        variables=environment.variable_rows(environ),
        layout=layout.layout_of(served.layout),
        findings=tuple(findings),
        command=_command_facts(question.command),
    )


def _ask(question: Question, package: Path | None) -> _Served:
    """Let processes say what serving makes of the command, if there is one, and of the model."""
    served = _Served(asked=question.layout)
    if question.command is not None:
        served.command = ask_command(question.command, question.model)
        served.asked = layout_request(served.command)
    if served.asked is not None:
        served.layout = layout.ask_layout(served.asked, question.environ, package)
    return served


def _check_served(served: _Served, question: Question, package: Path | None) -> Iterator[Finding]:
    told = layout.layout_of(served.layout)
    if served.command:
        is_hybrid = None if served.asked is None else told is not None and len(told.groups) > 1
        yield from check_command(served.command, question.environ, is_hybrid=is_hybrid)
    if served.asked is not None:
        environ, knows_command = question.environ, bool(served.command)
        yield from layout.check_layout(
            served.layout, served.asked, environ, package, knows_command=knows_command
        )


def _has_connector(question: Question, served: _Served) -> bool:
    return question.has_connector or bool(served.command.get("kv_transfer_config"))


def _command_facts(command: ServingCommand | None) -> CommandFacts | None:
    return None if command is None else CommandFacts(str(command), command.container)
