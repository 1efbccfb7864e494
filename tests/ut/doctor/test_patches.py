# SPDX-License-Identifier: Apache-2.0
"""What a serving process answers, and what that means: silently inactive is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vllm_ascend.doctor.findings import Finding, Severity
from vllm_ascend.doctor.patches import check_package, check_patches, patch_rows
from vllm_ascend.prefix_cache_config import FORMER_VARIABLES

PARTIAL = {"VLLM_ASCEND_DSV4_PARTIAL_HITS": "1"}
NAME = "vllm_ascend_backport"


def patch(state: str, target: str = "vllm.a:B.c", **fields: str) -> dict[str, str]:
    return {"target": target, "feature": "retention", "state": state, "why": "", "module": ""} | (
        fields
    )


def answers(*patches: dict[str, str], **plugins: Any) -> dict[str, Any]:
    entry = {"name": NAME, "allowed": True, "failed": None}
    return {
        "vllm": {"version": "0.20.2", "variables": []},
        "plugins": {"raised": None, "allowed": None, "entries": [entry], **plugins},
        "package": {"folder": "/somewhere/vllm_ascend"},
        "patches": list(patches),
    }


def findings(told: dict[str, Any], environ: dict[str, str]) -> list[Finding]:
    rows = patch_rows(told, environ, None)
    return list(check_patches(told, rows, environ, None))


def test_all_in_place_needs_no_word():
    assert not findings(answers(patch("applied")), PARTIAL)


@pytest.mark.parametrize(
    ("plugins", "reason"),
    [
        ({"entries": []}, "no installed distribution registers vllm_ascend"),
        (
            {"entries": [{"name": NAME, "allowed": True, "failed": "ImportError: no torch"}]},
            "ImportError: no torch",
        ),
        (
            {"allowed": ["other"], "entries": [{"name": NAME, "allowed": False, "failed": None}]},
            f"VLLM_PLUGINS=other leaves out {NAME}",
        ),
    ],
)
def test_inactive_patches_are_wrong_where_something_is_asked_for(plugins, reason):
    told = answers(patch("not loaded"), **plugins)
    (wrong,) = findings(told, PARTIAL)
    assert wrong.severity is Severity.WRONG
    assert reason in wrong.text
    assert "VLLM_ASCEND_DSV4_PARTIAL_HITS" in wrong.text
    (warning,) = findings(told, {})
    assert warning.severity is Severity.WARNING


@pytest.mark.parametrize("environ", [{}, PARTIAL])
def test_a_plugin_that_raises_stops_every_engine(environ):
    told = answers(patch("refused", why="other vLLM"), raised="PatchError: other vLLM")
    assert Severity.WRONG in {finding.severity for finding in findings(told, environ)}


def test_an_invalid_value_is_told_once_and_not_here():
    environ = {"VLLM_ASCEND_DSV4_PARTIAL_HITS": "yes"}
    raised = "ValueError: VLLM_ASCEND_DSV4_PARTIAL_HITS='yes' is invalid: allowed are 0 and 1"
    assert not findings(answers(patch("refused"), raised=raised), environ)


@pytest.mark.parametrize("state", ["refused", "not loaded"])
@pytest.mark.parametrize("name", ["VLLM_ASCEND_DSV4_PARTIAL_HITS", *FORMER_VARIABLES])
def test_no_patch_is_refused_where_a_setting_is_invalid(state, name):
    told = answers(patch(state, why="ValueError: of a variable"))
    (row,) = patch_rows(told, {name: "yes"}, None)
    assert (row.status, row.reason) == ("not loaded", f"{name} is invalid")


def test_a_process_that_dies_is_wrong():
    (finding,) = findings({"died": "exit code -11: nothing said"}, {})
    assert finding.severity is Severity.WRONG
    assert "exit code -11" in finding.text


def test_a_patch_that_somebody_replaced_is_wrong_and_a_wrapped_one_is_not():
    told = answers(patch("applied"), patch("replaced", "vllm.a:x", why="replaced since, by other"))
    (finding,) = findings(told, PARTIAL)
    assert finding.severity is Severity.WRONG
    assert "vllm.a:x is replaced" in finding.text
    told = answers(patch("applied"), patch("wrapped", "vllm.a:x", why="wrapped since, by other"))
    (finding,) = findings(told, PARTIAL)
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize(
    ("row", "environ", "status"),
    [
        (patch("not loaded", module="vllm_ascend.patch.worker.patch_x"), {}, "not needed"),
        (patch("not loaded", module="vllm_ascend.patch.worker.patch_x"), PARTIAL, "not loaded"),
        (patch("ready", feature="checkout-cache"), PARTIAL, "not needed"),
        (patch("ready", "vllm_ascend.worker:x"), PARTIAL, "not needed"),
        (patch("left to vLLM"), PARTIAL, "left to vLLM"),
    ],
)
def test_a_patch_that_is_not_there_may_not_be_needed(row, environ, status):
    applied = patch("applied", "vllm.a:first")
    assert patch_rows(answers(applied, row), environ, None)[1].status == status


def test_where_serving_has_no_patches_all_of_them_are_not_loaded():
    rows = patch_rows(answers(), PARTIAL, None)
    assert {row.status for row in rows} == {"not loaded"}
    assert "vllm.v1.core.sched.scheduler:Scheduler.__init__" in {row.target for row in rows}


def checkout_at(folder: Path) -> Path:
    (folder / "platform.py").touch()
    return folder


def test_over_a_checkout_its_patches_are_needed(tmp_path):
    told = answers(patch("applied"), patch("not loaded", "a:x", feature="checkout-cache"))
    assert patch_rows(told, {}, None)[1].status == "not needed"
    assert patch_rows(told, {}, checkout_at(tmp_path))[1].status == "not loaded"


def test_another_package_in_serving_is_told_unless_it_is_a_checkout(tmp_path):
    (finding,) = check_package(answers(), tmp_path)
    assert str(tmp_path) in finding.text
    assert not list(check_package(answers(), checkout_at(tmp_path)))


def test_a_checkout_without_the_overlay_is_why_nothing_is_active(tmp_path):
    told = answers(patch("not loaded"))
    (finding,) = check_patches(told, (), PARTIAL, checkout_at(tmp_path))
    assert "the overlay is not in force there" in finding.text


def test_over_an_overlay_that_is_whole_nobody_is_told_to_apply_it(tmp_path):
    """Without torch_npu, say: vllm-ascend's own plugins are not there, and ours finds theirs."""
    told = answers(patch("not loaded"))
    package = checkout_at(tmp_path)
    (finding,) = check_patches(told, (), PARTIAL, package, is_overlaid=True)
    assert finding.severity is Severity.WRONG
    assert "overlay apply" not in finding.command and "not in force" not in finding.text
    assert f"only {NAME} names this package" in finding.text
