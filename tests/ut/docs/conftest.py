# SPDX-License-Identifier: Apache-2.0
"""The built site, for every test that looks at it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


def build(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Build a site, and return what became of it."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the project's site, built strictly."""
    folder = tmp_path_factory.mktemp("site")
    built = build("--strict", "--site-dir", str(folder))
    assert built.returncode == 0, built.stderr
    return folder
