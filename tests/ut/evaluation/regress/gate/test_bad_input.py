# SPDX-License-Identifier: Apache-2.0
"""What cannot be used is named before anything is sent."""

import socket

import pytest

from tests.ut.evaluation.regress.chat_server import ChatServer
from tests.ut.evaluation.regress.gate.command import ACCURACY, PERFORMANCE, invoke


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--suite", "speed"), "--suite speed: allowed are performance, accuracy"),
        (("--suite", "accuracy"), "--gpqa-file: accuracy needs"),
        (("--tool", "evalscope"), "--tool evalscope: allowed are auto, ais_bench and vllm"),
        ((*PERFORMANCE, "--model", "big"), "--model big: http://127.0.0.1"),
        ((*PERFORMANCE, "--baseline", "none.json"), "--baseline none.json: "),
        ((*PERFORMANCE, "--save-baseline", "."), "--save-baseline .: is a folder"),
        ((*PERFORMANCE, "--rejudge"), "/out holds no run"),
        ((*PERFORMANCE, "--rejudge", "--restart"), "--rejudge and --restart: choose one"),
        ((*PERFORMANCE, "--tolerance", "x=1"), "--tolerance x=1: expected"),
        ((*PERFORMANCE, "--input-tokens", "99993"), "--input-tokens 99993 and --output-tokens 8"),
        ((*ACCURACY, "--gpqa-max-tokens", "100000"), "--gpqa-max-tokens 100000: tiny takes"),
        ((*PERFORMANCE, "--shared-percent", "100"), "--shared-percent"),
        ((*PERFORMANCE, "--junit", "."), "--junit .: is a folder"),
        ((*PERFORMANCE, "--markdown", "tokenizer/tokenizer.json/x"), "--markdown tokenizer/"),
        ((*PERFORMANCE, "--tokenizer", ""), "--tokenizer /models/tiny, which the server was"),
        ((*PERFORMANCE, "--tokenizer", "bin"), "--tokenizer bin: holds no tokenizer"),
        ((*PERFORMANCE, "--tokenizer", "org/model"), "--tokenizer org/model: ais_bench needs a"),
    ],
)
def test_bad_input_is_named(tmp_path, arguments, what):
    with ChatServer() as server:
        result = invoke(server, tmp_path, *arguments)
    assert (result.exit_code, server.bodies) == (2, [])
    assert what in result.output and "Traceback" not in result.output


def test_an_address_that_is_none(tmp_path):
    result = invoke("127.0.0.1:8000", tmp_path, *PERFORMANCE)
    assert result.exit_code == 2 and "--url 127.0.0.1:8000: expected http://" in result.output


def test_a_server_that_is_not_there(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        result = invoke(url, tmp_path, *PERFORMANCE)
    assert result.exit_code == 2
    assert f"failed: --url {url}/v1/models: cannot be reached" in result.output
    assert "kept" not in result.output
