# SPDX-License-Identifier: Apache-2.0
"""Whether this project lies over a vllm-ascend checkout, whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from vllm_ascend.deployment import is_checkout
from vllm_ascend.doctor.environment import asks_for_something
from vllm_ascend.doctor.findings import Finding, OverlayFacts, Severity
from vllm_ascend.overlay import OverlayError, make_plan, status
from vllm_ascend.overlay.state import ABSENT, APPLIED, HALF_APPLIED, MODIFIED

# Beside the overlay's own words for what is there:
NO_CHECKOUT = "none"
UNKNOWN = "unknown"
UNSUPPORTED = "unsupported"

_PROBE = "overlay"
_NAMES_SHOWN = 3
_TEXTS = {
    ABSENT: "the checkout is vllm-ascend's own, nothing of this project lies over it",
    APPLIED: "this project lies over the checkout, whole",
    HALF_APPLIED: "applying or reverting it was interrupted",
    MODIFIED: "changed since it was applied",
}
_REMEDIES = {
    ABSENT: "python -m vllm_ascend overlay apply CHECKOUT",
    UNSUPPORTED: "check out a branch that it names, or use its image",
    HALF_APPLIED: "python -m vllm_ascend overlay revert CHECKOUT, then apply it",
    MODIFIED: "python -m vllm_ascend overlay revert --discard-changes CHECKOUT, then apply it",
}


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
    text = _TEXTS.get(found.state, found.state)
    if found.modified:
        more = len(found.modified) - _NAMES_SHOWN
        text += f": {', '.join(found.modified[:_NAMES_SHOWN])}"
        text += f" and {more} more" if more > 0 else ""
    return OverlayFacts(found.state, text, str(checkout), found.head)


def check_overlay(facts: OverlayFacts, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding unless the overlay is whole, or is neither there nor asked for."""
    if facts.state in (NO_CHECKOUT, APPLIED):
        return
    if facts.state == UNSUPPORTED:
        severity = Severity.WRONG if asks_for_something(environ) else Severity.WARNING
        yield Finding(_PROBE, severity, f"{facts.checkout}: {facts.text}", _REMEDIES[UNSUPPORTED])
        return
    text = f"the overlay over {facts.checkout}: {facts.text}"
    if facts.state == ABSENT:
        yield from _check_fit(Path(str(facts.checkout)))
        if asks_for_something(environ):
            yield Finding(_PROBE, Severity.WRONG, text, _REMEDIES[ABSENT])
        return
    severity = Severity.WARNING if facts.state == UNKNOWN else Severity.WRONG
    yield Finding(_PROBE, severity, text, _REMEDIES.get(facts.state, ""))


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
        text = f"{checkout} is no known commit of vllm-ascend; all that the overlay needs is there"
        yield Finding(_PROBE, Severity.WARNING, text, "overlay apply --allow-unknown")
