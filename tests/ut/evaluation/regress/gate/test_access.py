# SPDX-License-Identifier: Apache-2.0
"""API keys reach the server and nobody else; certificates are verified."""

import subprocess
import sys

import pytest

from tests.ut.evaluation.regress.chat_server import ChatServer
from tests.ut.evaluation.regress.gate.command import ACCURACY, BOTH, PERFORMANCE, invoke, report_of

SECRET = "sk-t0p-secret"


def files_with(text, folder):
    return [path for path in folder.rglob("*") if path.is_file() and text in path.read_text()]


@pytest.mark.parametrize("given_by", ["option", "variable"])
def test_an_api_key_is_shown_to_the_server_and_to_nobody_else(tmp_path, monkeypatch, given_by):
    arguments = (*BOTH, "--api-key", SECRET) if given_by == "option" else BOTH
    if given_by == "variable":
        monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setattr(sys, "argv", ["__main__.py", "regress", *arguments])
    with ChatServer(api_key=SECRET) as server:
        result = invoke(server, tmp_path, *arguments)
        assert result.exit_code == 0, result.output
        (tmp_path / "asked").mkdir()
        assert invoke(server, tmp_path / "asked", *ACCURACY, *arguments[len(BOTH) :]).exit_code == 0
    assert SECRET not in result.output and not files_with(SECRET, tmp_path)
    assert report_of(tmp_path)["command"].endswith("--api-key '***'" * (given_by == "option"))


def test_no_key_is_left_behind_a_tool_that_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_AIS_BENCH", "quit")
    with ChatServer(api_key=SECRET) as server:
        result = invoke(server, tmp_path, *PERFORMANCE, "--api-key", SECRET)
    assert result.exit_code == 2 and "ais_bench ended with 3" in result.output, result.output
    assert SECRET not in result.output and not files_with(SECRET, tmp_path)


def test_a_server_that_wants_a_key_is_named_with_the_option(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with ChatServer(api_key=SECRET) as server:
        for arguments in (PERFORMANCE, (*PERFORMANCE, "--api-key", "wrong")):
            result = invoke(server, tmp_path, *arguments)
            assert result.exit_code == 2 and "/v1/models: status 401" in result.output
            assert "--api-key or OPENAI_API_KEY" in result.output


def test_a_password_in_the_url_is_refused_unrepeated(tmp_path):
    """It would stand in the command lines and logs of the tools that send the load."""
    result = invoke("http://user:S3cret@127.0.0.1:9", tmp_path, *PERFORMANCE)
    assert result.exit_code == 2 and "--url: " in result.output, result.output
    assert "S3cret" not in result.output and not files_with("S3cret", tmp_path)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A key and a certificate that nobody vouches for."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
    command += " -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    file = tmp_path_factory.mktemp("tls") / "pair.pem"
    both = [*command.split(), "-keyout", "-", "-out", "-"]
    file.write_bytes(subprocess.run(both, check=True, capture_output=True).stdout)
    return file


def test_a_certificate_that_nobody_vouches_for_is_taken_on_request(tmp_path, certificate):
    with ChatServer(certificate=certificate) as server:
        result = invoke(server, tmp_path, *ACCURACY)
        assert result.exit_code == 2 and "--insecure" in result.output, result.output
        result = invoke(server, tmp_path, *ACCURACY, "--insecure")
        assert result.exit_code == 0, result.output
        with_ais_bench = invoke(server, tmp_path / "2", *PERFORMANCE, "--insecure")
    assert with_ais_bench.exit_code == 2
    assert "--insecure: ais_bench verifies certificates" in with_ais_bench.output
