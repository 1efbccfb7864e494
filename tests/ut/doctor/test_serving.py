# SPDX-License-Identifier: Apache-2.0
"""Real processes that load vLLM's plugins as serving does: whole, filtered, broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import vllm_ascend
from vllm_ascend.doctor import patches
from vllm_ascend.doctor.children import find_package
from vllm_ascend.doctor.findings import Finding, Severity
from vllm_ascend.prefix_cache_config import child_environment

PARTIAL = {"VLLM_ASCEND_DSV4_PARTIAL_HITS": "1", "VLLM_ASCEND_APPLY_DSV4_PATCH": "1"}
OURS = Path(str(vllm_ascend.__file__)).parent


def ask(environ: dict[str, str]) -> dict[str, Any]:
    return patches.ask_serving(child_environment(environ))


def check(answers: dict[str, Any], environ: dict[str, str]) -> list[Finding]:
    rows = patches.patch_rows(answers, environ, OURS)
    return list(patches.check_patches(answers, rows, environ, OURS))


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return ask(PARTIAL)


def test_every_patch_is_in_place_or_not_needed(whole):
    rows = patches.patch_rows(whole, PARTIAL, OURS)
    statuses = {row.status for row in rows}
    assert patches.APPLIED in statuses
    in_place = {patches.APPLIED, patches.OVERRIDDEN}
    assert statuses <= {*in_place, patches.NOT_NEEDED, "left to vLLM", patches.NOT_AVAILABLE}
    features = {row.feature for row in rows if row.status in in_place}
    assert {"retention", "dsv4-layout", "partial-hits", "coordinator"} <= features
    assert not check(whole, PARTIAL)


def test_serving_says_what_it_imported(whole):
    vllm = patches.serving_vllm(whole)
    assert vllm is not None and vllm.version is not None and vllm.version.startswith("0.20.2")
    package = find_package("vllm_ascend", child_environment({}))
    assert package is not None and package.samefile(OURS)
    assert not list(patches.check_package(whole, package))
    assert "VLLM_LOGGING_LEVEL" in patches.known_variables(whole, None)


def test_a_filter_of_plugins_that_leaves_us_out_is_wrong():
    environ = {**PARTIAL, "VLLM_PLUGINS": "lora_filesystem_resolver"}
    (finding,) = check(ask(environ), environ)
    assert finding.severity is Severity.WRONG
    assert "VLLM_PLUGINS=lora_filesystem_resolver leaves out vllm_ascend_backport" in finding.text


def test_a_plugin_that_cannot_be_imported_is_wrong(tmp_path: Path):
    """vLLM logs it and serves on without it."""
    (tmp_path / "vllm_ascend").mkdir()
    (tmp_path / "vllm_ascend" / "__init__.py").write_text("import no_such_library\n")
    environ = {**PARTIAL, "PYTHONPATH": str(tmp_path)}
    told = ask(environ)
    (finding,) = check(told, environ)
    assert finding.severity is Severity.WRONG
    assert "vLLM cannot load the plugin vllm_ascend_backport" in finding.text
    assert "No module named 'no_such_library'" in finding.text
    package = find_package("vllm_ascend", child_environment(environ))
    assert package == tmp_path / "vllm_ascend"
    (warning,) = patches.check_package(told, package)
    assert str(package) in warning.text
