# SPDX-License-Identifier: Apache-2.0
"""Versions: where CANN says its own, and what is missing."""

from __future__ import annotations

import pytest

from vllm_ascend.doctor.findings import Severity, Version
from vllm_ascend.doctor.versions import cann_version, check_versions, versions


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("ascend_toolkit_install.info", "package_name=Ascend-cann-toolkit\nversion=8.5.0\n"),
        ("aarch64-linux/ascend_toolkit_install.info", "version=8.5.0\n"),
        ("version.cfg", "# version: 1.0\ntoolkit_running_version=[8.5.0:CANN-8.5.0]\n"),
    ],
)
def test_cann_says_its_version_in_its_toolkit(tmp_path, file, text):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    found = cann_version({"ASCEND_HOME_PATH": str(tmp_path)})
    assert found == Version("CANN", "8.5.0", str(tmp_path))


def test_no_cann_is_no_version(tmp_path):
    assert cann_version({"ASCEND_HOME_PATH": str(tmp_path)}).version is None


def test_everything_that_takes_part_has_a_row():
    found = {version.name: version.version for version in versions({}, vllm=None)}
    assert found["vLLM"].startswith("0.20.2")
    assert found["torch"]
    assert {"vllm-ascend", "torch_npu", "CANN", "Python"} <= set(found)


@pytest.mark.parametrize(
    ("version", "over_checkout", "severities"),
    [
        (None, False, [Severity.WRONG]),
        ("0.21.0", False, [Severity.WARNING]),
        ("0.20.2+cpu", False, []),
        ("0.20.2", True, [Severity.WARNING, Severity.WARNING]),  # torch_npu and CANN
    ],
)
def test_what_does_not_fit_is_told(version, over_checkout, severities):
    found = check_versions([Version("vLLM", version)], over_checkout=over_checkout)
    assert [finding.severity for finding in found] == severities


def test_a_vllm_of_which_only_the_scheduler_is_tested_is_told():
    (found,) = check_versions([Version("vLLM", "0.33.0+cpu")], over_checkout=False)
    assert found.severity is Severity.WARNING
    assert "only the scheduler is tested" in found.text
    assert found.text.startswith("of vLLM 0.33.0 only the scheduler is tested")
    assert found.remedy == "use vLLM 0.32.0 to serve"
