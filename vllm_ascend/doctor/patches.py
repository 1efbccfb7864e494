# SPDX-License-Identifier: Apache-2.0
"""The patches in a serving process, and why they are not there if they are not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vllm_ascend
from vllm_ascend.deployment import is_checkout, vllm_distribution
from vllm_ascend.doctor import children, serving_child
from vllm_ascend.doctor.environment import (
    asks_for_something,
    invalid_variables,
    variables_set,
)
from vllm_ascend.doctor.findings import Finding, PatchRow, Severity, Version
from vllm_ascend.overlay.patch_list import listed_patches
from vllm_ascend.patch.planner import APPLIED, LEFT_TO_VLLM, NOT_AVAILABLE, OVERRIDDEN
from vllm_ascend.prefix_cache_config import load_config
from vllm_ascend.releases import SUPPORTED, Release, find_release

# Beside the planner's words for what becomes of a patch:
NOT_NEEDED = "not needed"
NOT_LOADED = "not loaded"
REFUSED = "refused"
READY = "ready"
WRAPPED = "wrapped"
_IN_ORDER = (APPLIED, OVERRIDDEN, LEFT_TO_VLLM, NOT_AVAILABLE, NOT_NEEDED, READY)

_PROBE = "patches"
_WORKER = ("vllm_ascend.patch.worker.", "vllm_ascend.worker.")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]+")
_CHECKOUT = "checkout-"  # features that only a vllm-ascend checkout needs


def ask_serving(environ: Mapping[str, str]) -> dict[str, Any]:
    """Let a process load vLLM's plugins as serving does and say what became of it.

    Returns:
        The answers of :mod:`vllm_ascend.doctor.serving_child`, by probe.
    """
    return children.ask([str(Path(serving_child.__file__))], environ=environ)


def serving_vllm(answers: Mapping[str, Any]) -> Version | None:
    """Return the vLLM that serving imports."""
    answer = answers.get("vllm", {})
    if "version" not in answer:
        return None
    return Version("vLLM", answer["version"], "")


def known_variables(answers: Mapping[str, Any], checkout: Path | None) -> set[str]:
    """Return the environment variables that the running vLLM and a vllm-ascend checkout read."""
    known = set(answers.get("vllm", {}).get("variables", ()))
    if checkout is not None:
        known |= _variables_of(checkout / "vllm_ascend" / "envs.py")
    return known


def _variables_of(file: Path) -> set[str]:
    """Return what a module calls by its name, as variables are: its strings in capitals."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return set()
    strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {text for text in strings if isinstance(text, str) and _VARIABLE.fullmatch(text)}


def patch_rows(
    answers: Mapping[str, Any], environ: Mapping[str, str], package: Path | None
) -> tuple[PatchRow, ...]:
    """Return what became of every patch; of a module where its table could not be read.

    Args:
        answers: Of the serving process.
        environ: Its environment.
        package: The package ``vllm_ascend`` that it imports.
    """
    found = answers.get("patches", [])
    if not isinstance(found, list):
        return ()
    if not found:
        why = "the package vllm_ascend that serving imports has no patches, or cannot be imported"
        listed = listed_patches(_installed_release())
        return tuple(PatchRow(p.target, p.feature, NOT_LOADED, why) for p in listed)
    active = any(row["state"] == APPLIED for row in found)
    if not active and (names := invalid_variables(environ)):
        why = f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} invalid"
        return tuple(PatchRow(r["target"], r["feature"], NOT_LOADED, why) for r in found)
    unneeded = _Unneeded(_partial_hits(environ), _over_checkout(package))
    return tuple(
        PatchRow(row["target"], row["feature"], *_status(row, unneeded, active=active))
        for row in found
    )


def _status(row: Mapping[str, str], unneeded: _Unneeded, *, active: bool) -> tuple[str, str]:
    """Return (status, reason) of a patch; one that is not there may not be needed."""
    module, state, why = row["module"], row["state"], row["why"]
    if state == APPLIED:
        return state, why
    if not active:
        if state != NOT_LOADED:
            return state, why
        return (REFUSED, why) if why else (NOT_LOADED, "what installs them is not active")
    reason = unneeded.reason(row["target"], module, row["feature"])
    if reason:
        return NOT_NEEDED, reason
    return state, why or f"nothing imports {module}"


@dataclass(frozen=True)
class _Unneeded:
    """What serving may do without.

    Attributes:
        partial_hits: They are on.
        over_checkout: Serving imports vllm-ascend's package.
    """

    partial_hits: bool
    over_checkout: bool

    def reason(self, target: str, module: str, feature: str) -> str:
        """Return why a patch is not needed, or nothing.

        Args:
            target: What it changes.
            module: The module of ours that serving did not import; empty if it did.
            feature: What it belongs to; empty if its module could not be imported afterwards.
        """
        of_checkout = target.startswith("vllm_ascend.") or feature.startswith(_CHECKOUT)
        if not self.over_checkout and (not feature or of_checkout):
            return "over a vllm-ascend checkout only"
        if not self.over_checkout and module.startswith(_WORKER) and not self.partial_hits:
            return "with VLLM_ASCEND_DSV4_PARTIAL_HITS=1 only"
        return ""


def _installed_release() -> Release:
    """Return the release whose vLLM is installed; of another vLLM, or none, the oldest one."""
    vllm = vllm_distribution()
    return (find_release(vllm.version) if vllm is not None else None) or SUPPORTED[0]


def _over_checkout(package: Path | None) -> bool:
    return package is not None and is_checkout(package)


def _partial_hits(environ: Mapping[str, str]) -> bool:
    try:
        return load_config(environ).partial_hits
    except ValueError:
        return False


def check_patches(
    answers: Mapping[str, Any],
    rows: tuple[PatchRow, ...],
    environ: Mapping[str, str],
    package: Path | None,
    *,
    is_overlaid: bool = False,
) -> Iterator[Finding]:
    """Yield what is wrong with the patches in a serving process.

    vLLM logs a plugin whose import fails and serves without it: then nothing that the variables
    ask for is done. So it is wrong if they ask for anything, and a warning if they do not.

    Args:
        answers: Of the serving process.
        rows: See :func:`patch_rows`.
        environ: Its environment.
        package: The package ``vllm_ascend`` that it imports.
        is_overlaid: This is a checkout's, with files of ours over it, whole.
    """
    stops, is_known = _what_stops_engines(answers), _is_invalid_value(answers, environ)
    if stops and not is_known:
        yield Finding(_PROBE, Severity.WRONG, stops, "no engine will start; cure this first")
    severity = Severity.WRONG if asks_for_something(environ) else Severity.WARNING
    unread = _error(answers, "patches")
    if unread:
        text = f"what became of the patches cannot be told: {unread}"
        yield Finding(_PROBE, severity, text, "cure the import, or report this")
    elif any(row.status in (APPLIED, LEFT_TO_VLLM) for row in rows):
        yield from _check_rows(rows, severity)
    elif not stops:
        text, remedy, command = _why_inactive(answers, package, is_overlaid=is_overlaid)
        if severity is Severity.WRONG:
            text += f"; without them nothing acts on {', '.join(variables_set(environ))}"
        yield Finding(_PROBE, severity, f"the patches are not active: {text}", remedy, command)


def _what_stops_engines(answers: Mapping[str, Any]) -> str:
    """Return why no engine would come up to its plugins' end, or nothing."""
    if "died" in answers:
        return f"a process that loads vLLM's plugins dies: {answers['died']}"
    if _error(answers, "vllm"):
        return f"vLLM cannot be imported: {_error(answers, 'vllm')}"
    raised = _error(answers, "plugins") or answers.get("plugins", {}).get("raised")
    return f"loading vLLM's plugins fails: {raised}" if raised else ""


def _error(answers: Mapping[str, Any], probe: str) -> str:
    answer = answers.get(probe)
    return answer.get("error", "") if isinstance(answer, dict) else ""


def _is_invalid_value(answers: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Whether plugins failed on a value of ours, which the environment's probe reports."""
    try:
        load_config(environ)
    except ValueError as error:
        return str(error) in str(answers.get("plugins", {}).get("raised"))
    return False


def _check_rows(rows: tuple[PatchRow, ...], severity: Severity) -> Iterator[Finding]:
    for status in sorted({row.status for row in rows} - set(_IN_ORDER)):
        some = [row for row in rows if row.status == status]
        weight = Severity.WARNING if status == WRAPPED else severity
        more = f" (and {len(some) - 1} more)" if len(some) > 1 else ""
        text = f"{some[0].target} is {status}{more}: {some[0].reason}"
        yield Finding(_PROBE, weight, text, "find who else patches vLLM in this image")


def _why_inactive(
    answers: Mapping[str, Any], package: Path | None, *, is_overlaid: bool
) -> tuple[str, str, str]:
    """Return (reason, remedy, command) where no patch is in place although all plugins loaded."""
    plugins = answers.get("plugins", {})
    entries = plugins.get("entries", [])
    if not entries:
        return (
            "no installed distribution registers vllm_ascend as a vLLM plugin",
            "install this package into the Python that serves",
            "pip install --no-deps .",
        )
    for entry in entries:
        if entry["failed"]:
            return (
                f"vLLM cannot load the plugin {entry['name']}, logs that and goes on without it: "
                f"{entry['failed']}",
                "cure the import",
                "",
            )
    barred = [entry["name"] for entry in entries if not entry["allowed"]]
    if len(barred) == len(entries):
        return (
            f"VLLM_PLUGINS={','.join(plugins['allowed'])} leaves out {', '.join(barred)}",
            f"add {barred[0]} to VLLM_PLUGINS, or unset it",
            "",
        )
    if is_overlaid and package is not None:
        names = ", ".join(entry["name"] for entry in entries)
        return (
            "the overlay is in force, but no plugin of vllm-ascend is installed that would import "
            f"it: of those that vLLM finds, only {names} names this package",
            "install the checkout",
            f"pip install --no-deps --editable {package.parent}",
        )
    if _over_checkout(package):
        return (
            "serving imports vllm-ascend's package, and the overlay is not in force there",
            "",
            f"python -m vllm_ascend overlay apply {Path(str(package)).parent}",
        )
    return "its plugins were loaded, but installed nothing", "reinstall this package", ""


def check_package(answers: Mapping[str, Any], package: Path | None) -> Iterator[Finding]:
    """Yield a finding if serving cannot import ``vllm_ascend``, or another than this command.

    Args:
        answers: Of the serving process.
        package: The one that serving finds; ``None`` if it finds none.
    """
    error = _error(answers, "package")
    own = Path(str(vllm_ascend.__file__)).parent
    if error and package is not None:
        text = f"serving cannot import {package}: {error}"
        yield Finding(_PROBE, Severity.WARNING, text, "see why the patches are not active")
    # From a tree of ours over whose checkout serving runs is how it is meant to be.
    elif package is not None and not is_checkout(package) and not own.samefile(package):
        text = f"serving imports vllm_ascend from {package}, this command runs from {own}"
        yield Finding(_PROBE, Severity.WARNING, text, "what is told of patches is serving's")
