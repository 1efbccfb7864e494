# SPDX-License-Identifier: Apache-2.0
"""``npu-check`` on a node with NPUs, over a checkout with the overlay; see docs/npu-check.md.

``VLLM_ASCEND_SERVER`` (``http://HOST:PORT``) names a server that is to be asked as well.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch_npu", reason="no NPU here", exc_type=ImportError)

URL = os.environ.get("VLLM_ASCEND_SERVER")


def test_nothing_fails():
    server = [] if URL is None else ["--url", URL]
    command = [sys.executable, "-m", "vllm_ascend", "npu-check", *server]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    checks = json.loads(result.stdout)["checks"]
    assert [check for check in checks if check["verdict"] == "failed"] == []
    assert result.returncode == (3 if URL is None else 0)
