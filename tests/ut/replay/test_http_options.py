# SPDX-License-Identifier: Apache-2.0
"""Options of ``replay --url`` that cannot be used, alone or together."""

import pytest
from typer.testing import CliRunner

from tests.ut.replay.test_http_replay import invoke
from vllm_ascend.__main__ import app


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--layout", "dsv4-flash-gpu"), "--layout"),
        (("--variant", "best", "--verify"), "--variant, --verify"),
        (("--block-size", "128"), "--block-size"),
        (("--speed", "2"), "--speed"),
        (("--timestamps", "--concurrency", "2"), "--concurrency"),
        (("--timestamps", "--speed", "0"), "--speed"),
        (("--timestamps",), "timestamps"),
        (("--arrivals", "never"), "--arrivals"),
        (("--scale", "3"), "--scale"),
        (("--vocab-size", "7"), "--vocab-size"),
        (("--timeout", "0"), "--timeout"),
        (("--png", "/no/such/folder/x.png"), "--png"),
        (("--max-prompt-tokens", "3"), "more than 3 tokens"),
    ],
)
def test_refusals(tmp_path, arguments, named):
    result = invoke("http://127.0.0.1:9", tmp_path, "--workload", "4:64:32:1", *arguments)
    assert result.exit_code == 2, result.output
    assert named in " ".join(result.output.split())
    assert result.output.count("error:") == 1
    assert not (tmp_path / "out").exists()


def test_options_of_a_server_without_one(tmp_path):
    arguments = ("replay", "--scale", "2", "--model", "m", "--out", str(tmp_path / "out"))
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "only with --url" in result.output and "--model, --scale" in result.output


def test_not_a_url(tmp_path):
    assert invoke("localhost:8000", tmp_path).exit_code == 2
