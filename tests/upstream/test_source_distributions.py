# SPDX-License-Identifier: Apache-2.0
"""The overlay knows every source distribution by its files, and says which it can be put over."""

from __future__ import annotations

import re

import pytest

from tests.upstream.sources import RELEASES, unpacked
from vllm_ascend.doctor.findings import Severity
from vllm_ascend.doctor.overlay import check_overlay, overlay_facts
from vllm_ascend.overlay import make_plan
from vllm_ascend.overlay.known_heads import head_of
from vllm_ascend.overlay.ownership import files_of_ours
from vllm_ascend.releases import find_release

SUPPORTED_RELEASES = [name for vllm, name in RELEASES.items() if find_release(vllm)]


@pytest.mark.parametrize(("vllm", "release"), RELEASES.items())
def test_it_is_a_known_commit(vllm, release):
    package = unpacked(release) / "vllm_ascend"
    head = head_of(package)
    assert head is not None and (head.vllm, head.version) == (vllm, release)
    said = re.search(r"^__commit_id__ = .*'g(\w+)'$", (package / "_version.py").read_text(), re.M)
    assert said and head.commit.startswith(said[1])


@pytest.mark.parametrize("release", SUPPORTED_RELEASES)
def test_the_supported_ones_fit(release):
    checkout = make_plan(unpacked(release)).checkout
    assert checkout.head and not checkout.problems
    assert RELEASES[checkout.release.vllm] == release


@pytest.mark.parametrize("release", RELEASES.values())
def test_no_file_of_it_is_taken_for_ours(release):
    assert files_of_ours(unpacked(release) / "vllm_ascend") == ()


@pytest.mark.parametrize("serving", RELEASES)
@pytest.mark.parametrize(("vllm", "release"), RELEASES.items())
def test_under_another_vllm_it_is_wrong(vllm, release, serving):
    facts = overlay_facts(unpacked(release), None)
    severities = {finding.severity for finding in check_overlay(facts, {}, f"{serving}+cpu")}
    assert (Severity.WRONG in severities) is (vllm != serving)
