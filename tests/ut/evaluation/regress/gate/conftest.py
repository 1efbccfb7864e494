# SPDX-License-Identifier: Apache-2.0
"""A stand-in for ``ais_bench``."""

import os
import sys

import pytest

from tests.ut.evaluation.regress.gate.command import REPOSITORY


@pytest.fixture(autouse=True)
def fake_ais_bench(tmp_path, monkeypatch):
    """Put the stand-in on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "ais_bench"
    command.write_text(
        f"#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {sys.executable} -m "
        'tests.ut.evaluation.regress.fake_ais_bench "$@"\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")  # nobody here reads it
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("FAKE_AIS_BENCH", raising=False)
