# SPDX-License-Identifier: Apache-2.0
"""Options of ``replay --url`` that cannot be used, alone or together."""

import base64
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from typer.testing import CliRunner

from tests.ut.evaluation.replay.http.completions_server import CompletionsServer
from tests.ut.evaluation.replay.http.test_replay import invoke
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
        (("--api-key", "two words\n"), "--api-key"),
        (("--out", __file__), "--out"),
        (("--png", "/no/such/folder/x.png"), "--png"),
        (("--max-prompt-tokens", "3"), "--max-prompt-tokens 3"),
    ],
)
def test_refusals(tmp_path, arguments, named):
    result = invoke("http://127.0.0.1:9", tmp_path, "--workload", "4:64:32:1", *arguments)
    assert result.exit_code == 2, result.output
    assert named in " ".join(result.output.split())
    assert result.output.count("error:") == 1
    assert not (tmp_path / "out").exists()


def refused(server, tmp_path, *arguments):
    """Return the one line in which a command says what is wrong; nothing has been written."""
    result = invoke(server, tmp_path, "--workload", "4:64:32:1", *arguments)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert not (tmp_path / "out" / "report.json").exists()
    (line,) = (
        line for line in result.output.splitlines() if line.startswith(("error:", "failed:"))
    )
    return line


def test_an_unknown_model_is_refused_with_those_there_are(tmp_path):
    with CompletionsServer() as server:
        line = refused(server, tmp_path, "--model", "nowhere")
    assert line == "error: --model nowhere: the server offers tiny, other"
    assert not server.bodies


def test_too_long_requests_are_refused_before_anything_is_sent(tmp_path):
    with CompletionsServer(max_model_len=64) as server:
        line = refused(server, tmp_path)
    assert (
        "--workload 4:64:32:1: every request is too long: with their answers they have 65" in line
    )
    assert "the server's --max-model-len 64" in line and not server.bodies


def test_a_vocabulary_that_is_too_large_names_the_option(tmp_path):
    with CompletionsServer(vocab_size=500) as server:
        line = refused(server, tmp_path, "--vocab-size", "100000")
    assert line.startswith("failed: --vocab-size 100000: ") and "out of vocabulary" in line


@pytest.mark.parametrize("key", [None, "wrong"])
def test_a_server_that_wants_a_key(tmp_path, monkeypatch, key):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with CompletionsServer(api_key="s3cret") as server:
        line = refused(server, tmp_path, *(() if key is None else ("--api-key", key)))
    assert "status 401" in line and "--api-key, or OPENAI_API_KEY" in line
    assert ("is needed" in line) == (key is None) and "wrong" not in line


@pytest.mark.parametrize("from_variable", [False, True])
def test_a_key_opens_the_server_and_is_in_no_report(tmp_path, monkeypatch, from_variable):
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret" if from_variable else "another")
    arguments = ("--workload", "4:64:32:1", *(() if from_variable else ("--api-key", "s3cret")))
    monkeypatch.setattr("sys.argv", ["vllm_ascend", "replay", *arguments])
    with CompletionsServer(api_key="s3cret") as server:
        result = invoke(server, tmp_path, *arguments)
    assert result.exit_code == 0, result.output
    for file in (tmp_path / "out").iterdir():
        assert "s3cret" not in file.read_text()
    assert "s3cret" not in result.output


@pytest.mark.parametrize("password", ["s3cret", "wr0ng"])
def test_a_password_in_the_url_opens_the_server_and_is_in_no_report(
    tmp_path, monkeypatch, password, caplog
):
    caplog.set_level("DEBUG")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    basic = "Basic " + base64.b64encode(b"us3r:s3cret").decode()
    with CompletionsServer(api_key=basic) as server:
        url = server.url.replace("://", f"://us3r:{password}@")
        arguments = ("--workload", "4:64:32:1")
        monkeypatch.setattr("sys.argv", ["vllm_ascend", "replay", "--url", url, *arguments])
        result = invoke(url, tmp_path, *arguments)
        host = server.url.removeprefix("http://")
    assert result.exit_code == (0 if password == "s3cret" else 2), result.output
    if password == "s3cret":
        report = (tmp_path / "out" / "report.json").read_text()
        assert f"http://{host}" in report and f"***@{host}" in report, "the host stays"
    else:
        assert f"--url {server.url}: " in result.output
    written = [file.read_text() for file in (tmp_path / "out").glob("*")]
    for text in (result.output, caplog.text, *written):
        assert password not in text and "us3r" not in text


def test_an_unknown_certificate_needs_insecure(tmp_path):
    files = (str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem"))
    self_signed(*files)
    with CompletionsServer(certificate=files) as server:
        assert "--insecure" in refused(server, tmp_path)
        result = invoke(server, tmp_path, "--workload", "4:64:32:1", "--insecure")
    assert result.exit_code == 0, result.output


def self_signed(certificate: str, key: str) -> None:
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-subj", "/CN=127.0.0.1", "-days", "1"),
            *("-out", certificate, "-keyout", key),
        ],
        check=True,
        capture_output=True,
    )


@pytest.mark.parametrize("answer", ["404", "a page"])
def test_a_url_of_something_else(tmp_path, answer):
    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(404 if answer == "404" else 200)
            self.end_headers()
            self.wfile.write(b"<html>\n<h1>Welcome</h1>\n</html>")

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        line = refused(url, tmp_path)
        server.shutdown()
        thread.join()
    assert line.startswith(f"error: --url {url}: ") and "no server of the OpenAI API?" in line


def test_options_of_a_server_without_one(tmp_path):
    arguments = ("replay", "--scale", "2", "--model", "m", "--out", str(tmp_path / "out"))
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "only with --url" in result.output and "--model, --scale" in result.output
    result = CliRunner().invoke(app, ("replay", "--api-key", "s3cret", "--insecure"))
    assert result.exit_code == 2
    assert "--api-key, --insecure: only with --url" in " ".join(result.output.split())
    assert "s3cret" not in result.output


def test_not_a_url(tmp_path):
    assert invoke("localhost:8000", tmp_path).exit_code == 2
