# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's own connectors, run under this project's patches on a CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.upstream.checkout import VARIABLE, checkout

pytestmark = pytest.mark.skipif(
    checkout() is None, reason=f"{VARIABLE} names no checkout of vllm-ascend"
)


@pytest.mark.parametrize("cases", ["cases_mooncake.py", "cases_ascend_store.py"])
def test_the_cases_pass_in_a_process_of_their_own(cases):
    """Importing a checkout beside this package cannot be undone."""
    path = Path(__file__).with_name(cases)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    run = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
