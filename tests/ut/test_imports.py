# SPDX-License-Identifier: Apache-2.0
"""Who may import whom: the contracts in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_ERROR, EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parents[2]
PLANTED = """
[importlinter]
root_packages = vllm_ascend, vllm_ascend_evaluation

[importlinter:contract:planted]
name = What measures imports nothing of what serves
type = forbidden
source_modules = vllm_ascend_evaluation
forbidden_modules = vllm_ascend
"""


@pytest.fixture
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_nobody_imports_what_it_may_not(at_the_root, capsys):
    status = lint_imports(config_filename="pyproject.toml", no_cache=True)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out


def test_a_contract_that_is_broken_is_told(at_the_root, capsys, tmp_path):
    (tmp_path / "planted.ini").write_text(PLANTED)
    status = lint_imports(config_filename=str(tmp_path / "planted.ini"), no_cache=True)
    assert status == EXIT_STATUS_ERROR, capsys.readouterr().out
