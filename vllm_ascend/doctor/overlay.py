# SPDX-License-Identifier: Apache-2.0
"""Whether this project lies over a vllm-ascend checkout, whole, and that over the right vLLM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from vllm_ascend.deployment import is_checkout
from vllm_ascend.doctor.environment import asks_for_something
from vllm_ascend.doctor.findings import Finding, OverlayFacts, Severity
from vllm_ascend.overlay import OverlayError, OverlayStatus, make_plan, status
from vllm_ascend.overlay.ownership import command_to_get_back, describe_left_behind
from vllm_ascend.overlay.plan import describe_out_of_force, describe_unknown
from vllm_ascend.overlay.release import made_for
from vllm_ascend.overlay.state import (
    ABSENT,
    APPLIED,
    HALF_APPLIED,
    INTERRUPTED,
    MODIFIED,
    OUTDATED,
)

# Beside the overlay's own words for what is there:
NO_CHECKOUT = "none"
UNKNOWN = "unknown"
UNSUPPORTED = "unsupported"
# What it is that serving imports: files of ours, whole.
IN_FORCE = (APPLIED, OUTDATED)

_CHANGED_INSIDE = (
    "This is no known state of vllm-ascend, and what the overlay rests on has changed: "
    "`overlay plan` names it"
)
_PROBE = "overlay"
_NAMES_SHOWN = 3
_TEXTS = {
    ABSENT: "the checkout is vllm-ascend's own, nothing of this project lies over it",
    APPLIED: "this project lies over the checkout, whole",
    OUTDATED: "another version of this project lies over the checkout, whole; these differ",
    INTERRUPTED: "applying it was interrupted before anything was replaced",
    HALF_APPLIED: "applying or reverting it was interrupted",
    MODIFIED: "changed since it was applied",
}
_OVERLAY = "python -m vllm_ascend overlay"
# By what is there, with the checkout in place of {0}.
_COMMANDS = {
    ABSENT: f"{_OVERLAY} apply {{0}}",
    INTERRUPTED: f"{_OVERLAY} apply {{0}}",
    OUTDATED: f"{_OVERLAY} revert {{0}} && {_OVERLAY} apply {{0}}",
    HALF_APPLIED: f"{_OVERLAY} revert {{0}} && {_OVERLAY} apply {{0}}",
    MODIFIED: f"{_OVERLAY} revert --discard-changes {{0}} && {_OVERLAY} apply {{0}}",
}
_SEVERITIES = {UNKNOWN: Severity.WARNING, OUTDATED: Severity.WARNING}


def overlay_facts(checkout: Path | None, package: Path | None) -> OverlayFacts:
    """Return the state of the overlay.

    Args:
        checkout: The checkout that the user named, if any.
        package: The package ``vllm_ascend`` that serving imports, if any.
    """
    if checkout is None:
        if package is None or not is_checkout(package):
            text = "not over a checkout: beside vLLM, as a package of its own"
            return OverlayFacts(NO_CHECKOUT, text)
        checkout = package.parent
    try:
        found = status(checkout)
    except (OverlayError, OSError) as error:
        return OverlayFacts(UNKNOWN, f"cannot be told: {error}", str(checkout))
    if found.unsupported:
        return OverlayFacts(UNSUPPORTED, found.unsupported, str(checkout))
    if found.left_behind:
        command = command_to_get_back(checkout.resolve(), found.left_behind)
    else:
        command = _COMMANDS.get(found.state, "").format(checkout)
    return OverlayFacts(
        found.state, _text(found), str(checkout), found.head, command, found.out_of_force
    )


def _text(found: OverlayStatus) -> str:
    if found.left_behind:
        return describe_left_behind(found.left_behind)
    names = found.modified or found.outdated
    more = len(names) - _NAMES_SHOWN
    shown = f": {', '.join(names[:_NAMES_SHOWN])}" if names else ""
    return _TEXTS[found.state] + shown + (f" and {more} more" if more > 0 else "")


def check_overlay(
    facts: OverlayFacts, environ: Mapping[str, str], vllm: str | None = None
) -> Iterator[Finding]:
    """Yield what is wrong with the overlay, or with the checkout for the vLLM that serves.

    Args:
        facts: See :func:`overlay_facts`.
        environ: The environment that serving would have.
        vllm: The version of the vLLM that serves, if there is one.
    """
    if facts.state == NO_CHECKOUT:
        return
    mismatch = _another_vllm(facts, vllm)
    if mismatch is not None:
        yield mismatch
        return  # nothing that could be done to this checkout would help
    if facts.out_of_force:
        text = f"{facts.checkout}: {describe_out_of_force(facts.out_of_force)}"
        yield Finding(_PROBE, Severity.WARNING, text, "see whether serving needs that change")
    if facts.state == UNSUPPORTED:
        severity = Severity.WRONG if asks_for_something(environ) else Severity.WARNING
        remedy = "check out a branch that it names, or use its image"
        yield Finding(_PROBE, severity, f"{facts.checkout}: {facts.text}", remedy)
    elif facts.state in (ABSENT, INTERRUPTED):
        yield from _check_fit(Path(str(facts.checkout)))
        if asks_for_something(environ):
            yield _finding(facts)
    elif facts.state != APPLIED:
        yield _finding(facts)


def _finding(facts: OverlayFacts) -> Finding:
    severity = _SEVERITIES.get(facts.state, Severity.WRONG)
    text = f"the overlay over {facts.checkout}: {facts.text}"
    return Finding(_PROBE, severity, text, command=facts.command)


def _another_vllm(facts: OverlayFacts, vllm: str | None) -> Finding | None:
    """Return what is to be said of a checkout that is made for another vLLM than serves."""
    release = made_for(Path(str(facts.checkout)), facts.head)
    if vllm is None or release.vllm in (None, vllm.partition("+")[0]):
        return None
    return Finding(
        _PROBE,
        Severity.WRONG,
        f"{facts.checkout} is {release}, and vLLM {vllm} serves: they do not go together",
        f"serve with vLLM {release.vllm}, or name the checkout of vllm-ascend for vLLM {vllm}",
    )


def _check_fit(checkout: Path) -> Iterator[Finding]:
    """Yield what speaks against applying the overlay to a checkout that has none."""
    try:
        found = make_plan(checkout).checkout
    except (OverlayError, OSError) as error:
        yield Finding(_PROBE, Severity.WARNING, f"the overlay cannot be applied: {error}")
        return
    if found.problems:
        text = f"the overlay does not fit {checkout}: {'; '.join(found.problems)}"
        yield Finding(_PROBE, Severity.WARNING, text, "check out a commit that is supported")
    elif found.head is None:
        fits = describe_unknown(found)
        text = f"{checkout}: {fits or _CHANGED_INSIDE}"
        covered = describe_out_of_force(found.out_of_force)
        text += f". {covered}" if covered else ""
        command = f"{_OVERLAY} apply {'' if fits else '--allow-unknown '}{checkout}"
        yield Finding(_PROBE, Severity.WARNING, text, command=command)
