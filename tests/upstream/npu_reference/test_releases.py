# SPDX-License-Identifier: Apache-2.0
"""Which checks run over the plain checkout that is named."""

from __future__ import annotations

import pytest

from tests.upstream.npu_reference import releases
from tests.upstream.npu_reference.processes import CHECKS
from vllm_ascend.overlay.known_heads import known_heads

COMMITS = {head.commit[:8]: head for head in known_heads()}


@pytest.mark.parametrize("commit", releases._PLAIN_CHECKS_OF_COMMITS)
def test_a_commit_with_checks_of_its_own(commit, tmp_path, monkeypatch):
    monkeypatch.setattr(releases, "named_checkout", lambda: tmp_path)
    monkeypatch.setattr("vllm_ascend.overlay.known_heads.head_of", lambda _: COMMITS[commit])
    files = releases.own_plain_checks_here()
    assert files == releases._PLAIN_CHECKS_OF_COMMITS[commit]
    assert all((CHECKS / file).is_file() for file in files)


@pytest.mark.parametrize("named", [True, False])
def test_any_other_has_those_of_its_release(named, tmp_path, monkeypatch):
    monkeypatch.setattr(releases, "named_checkout", lambda: tmp_path if named else None)
    of_release = releases.differences_here().own_plain_checks
    assert releases.own_plain_checks_here() == of_release
    assert all((CHECKS / file).is_file() for file in of_release)
