# SPDX-License-Identifier: Apache-2.0
"""``make serve PORT=...``: a port that cannot be used ends it at once, with one line."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from tools.free_port import complaint

REPOSITORY = Path(__file__).parents[3]


def make_serve(port: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "free-port", f"PORT={port}"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_taken_port_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = make_serve(str(port))
    assert result.returncode == 2
    assert result.stderr.splitlines()[0].startswith(f"error: PORT={port} cannot be used (Address")
    assert "Traceback" not in result.stderr
    assert complaint(str(port)) == ""  # nobody listens there any more


@pytest.mark.parametrize("port", ("", "0", "65536", "http", "-1", "8000 "))
def test_what_is_no_port_is_said(port):
    assert complaint(port) == f"PORT={port} is invalid: allowed are numbers from 1 to 65535"


def test_the_port_is_looked_at_before_anything_is_set_up():
    plan = subprocess.run(
        ["make", "--dry-run", "serve", "PORT=1234"],
        cwd=REPOSITORY,
        # Below `make test` make would say which folder it enters.
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "free_port.py '1234'" in plan.splitlines()[0]
    assert "--port 1234" in plan
