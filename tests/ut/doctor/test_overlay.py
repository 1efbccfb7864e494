# SPDX-License-Identifier: Apache-2.0
"""The overlay over a checkout: whole, or wrong where something is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_ascend.doctor.findings import OverlayFacts, Severity
from vllm_ascend.doctor.overlay import check_overlay, overlay_facts
from vllm_ascend.overlay.state import Manifest, ManifestFile, directory, write_manifest

PARTIAL = {"VLLM_ASCEND_DSV4_PARTIAL_HITS": "1"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    package = tmp_path / "vllm_ascend"
    package.mkdir()
    for name in ("__init__.py", "platform.py"):
        (package / name).touch()
    return tmp_path


def severities(facts: OverlayFacts, environ: dict[str, str]) -> set[Severity]:
    return {finding.severity for finding in check_overlay(facts, environ)}


def leave_manifest(checkout: Path, state: str, head: str | None = "792ea0c6") -> None:
    """Leave what an overlay of one file would, which was changed since."""
    directory(checkout).mkdir()
    file = ManifestFile("doctor.py", replaces=False, sha256="0" * 64, original_sha256=None)
    write_manifest(checkout, Manifest(state, head, (file,), ()))


def test_a_package_of_its_own_lies_over_nothing(tmp_path):
    for package in (None, tmp_path / "vllm_ascend"):
        facts = overlay_facts(None, package)
        assert facts.state == "none"
        assert not severities(facts, PARTIAL)


def test_the_checkout_that_serving_imports_is_looked_at(checkout):
    assert overlay_facts(None, checkout / "vllm_ascend").checkout == str(checkout)


def test_a_checkout_that_is_named_is_looked_at(checkout):
    assert overlay_facts(checkout, None).checkout == str(checkout)


def test_a_checkout_without_overlay_is_wrong_where_something_is_asked_for(checkout):
    facts = overlay_facts(checkout, None)
    assert facts.state == "absent"
    assert Severity.WRONG not in severities(facts, {})
    assert Severity.WRONG in severities(facts, PARTIAL)


def test_a_checkout_for_another_vllm_says_what_it_is_and_what_is_supported(checkout):
    (checkout / "vllm_ascend" / "_version.py").write_text("__version__ = version = '0.26.0'\n")
    facts = overlay_facts(checkout, None)
    for environ, severity in (({}, Severity.WARNING), (PARTIAL, Severity.WRONG)):
        (finding,) = check_overlay(facts, environ)
        assert finding.severity is severity
        assert "this is vllm-ascend 0.26.0 for vLLM 0.26.0; supported here: " in finding.text
        assert "overlay apply" not in finding.command


@pytest.mark.parametrize("environ", [{}, PARTIAL])
@pytest.mark.parametrize("is_overlaid", (False, True))
@pytest.mark.parametrize(
    ("version", "vllm", "fits"),
    [
        ("0.23.0.post1", "0.20.2", False),
        ("0.20.2rc1", "0.23.0+cpu", False),
        ("0.26.0", "0.20.2", False),  # of no release that is supported here
        ("0.20.2rc1", "0.20.2+cpu", True),
        ("0.26.0", "0.26.0", True),
        ("0.23.0.post1", None, True),  # nobody can tell: there is no vLLM
        ("", "0.20.2", True),  # nobody can tell: no file says it
    ],
)
def test_a_checkout_for_another_vllm_than_serves_is_wrong(
    checkout, environ, is_overlaid, version, vllm, fits
):
    (checkout / "vllm_ascend" / "_version.py").write_text(f"__version__ = version = '{version}'\n")
    if is_overlaid:
        leave_manifest(checkout, "applied", head=None)
    found = list(check_overlay(overlay_facts(checkout, None), environ, vllm))
    told = [finding for finding in found if "they do not go together" in finding.text]
    assert bool(told) is not fits
    if not fits:
        assert found == told and told[0].severity is Severity.WRONG
        assert f"vllm-ascend {version}" in told[0].text and f"vLLM {vllm} serves" in told[0].text
        assert "overlay apply" not in told[0].command


def test_a_checkout_that_the_overlay_does_not_fit_is_told(checkout):
    (finding,) = check_overlay(overlay_facts(checkout, None), {})
    assert finding.severity is Severity.WARNING
    assert "does not fit" in finding.text or "cannot be applied" in finding.text


@pytest.mark.parametrize(
    ("left", "state", "text"),
    [("applying", "half-applied", "interrupted"), ("applied", "modified", "doctor.py")],
)
def test_anything_but_a_whole_overlay_is_wrong(checkout, left, state, text):
    leave_manifest(checkout, left)
    facts = overlay_facts(checkout, None)
    assert (facts.state, facts.head) == (state, "792ea0c6")
    assert text in facts.text
    assert severities(facts, {}) == {Severity.WRONG}


def test_a_manifest_that_cannot_be_read_is_told(checkout):
    directory(checkout).mkdir()
    (directory(checkout) / "manifest.json").write_text("{")
    facts = overlay_facts(checkout, None)
    assert facts.state == "unknown"
    assert severities(facts, {}) == {Severity.WARNING}
