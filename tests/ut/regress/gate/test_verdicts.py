# SPDX-License-Identifier: Apache-2.0
"""The whole command against a scripted server, with a stand-in for ``ais_bench``."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.ut.regress.chat_server import ChatServer
from vllm_ascend.__main__ import app

REPOSITORY = Path(__file__).parents[3]
QUESTIONS = REPOSITORY / "tests/e2e/regress/questions.csv"
NUM_QUESTIONS = 8
ACCURACY = ("--suite", "accuracy", "--gpqa-file", str(QUESTIONS), "--tool", "vllm")
PERFORMANCE = (
    *("--suite", "performance", "--tool", "ais_bench", "--requests", "6"),
    *("--input-tokens", "1000", "--output-tokens", "8", "--concurrency", "2"),
    *("--tokenizer", "tokenizer", "--warmup", "0", "--repeats", "1"),
)
BOTH = (*PERFORMANCE, "--suite", "performance,accuracy", "--gpqa-file", str(QUESTIONS))


@pytest.fixture(autouse=True)
def fake_ais_bench(tmp_path, monkeypatch):
    """Put the stand-in on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "ais_bench"
    command.write_text(
        f"#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {sys.executable} -m "
        'tests.ut.regress.fake_ais_bench "$@"\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")  # nobody here reads it
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("FAKE_AIS_BENCH", raising=False)


def invoke(server, folder, *arguments):
    url = server if isinstance(server, str) else server.url
    arguments = ("regress", "--url", url, "--out", str(folder / "out"), *map(str, arguments))
    result = CliRunner().invoke(app, arguments)
    # A console takes its width from whoever imports it first: where lines end says nothing.
    result.output_bytes = b" ".join(result.output_bytes.split())
    return result


def report_of(folder):
    return json.loads((folder / "out" / "regress.json").read_text())


def outcomes(folder):
    return {v["metric"]: v["outcome"] for v in report_of(folder)["verdicts"]}


def correct_letter(number):
    return "DCBA"[number % 4]


def test_without_a_baseline_it_measures_and_says_so(tmp_path):
    with ChatServer() as server:
        result = invoke(server, tmp_path, *BOTH)
    assert result.exit_code == 0, result.output
    assert "there is no baseline to compare with" in result.output
    report = report_of(tmp_path)
    assert report["passed"] is None and set(outcomes(tmp_path).values()) == {"not compared"}
    (load,) = report["performance"]["loads"]
    cache = load["cache"]
    assert (cache["query_tokens"], cache["hit_tokens"]) == (7000, 5250)
    assert cache["hit_rate_percent"] == 75
    assert cache["counters"] == {"vllm_ascend:partial_hits_total": 14}
    assert load["times"]["ttft_avg_ms"] == 193.3
    assert (report["accuracy"]["correct"], report["accuracy"]["unanswered"]) == (2, 0)
    assert report["target"]["vllm_version"] == "0.20.2"
    assert report["notes"] == []
    page = (tmp_path / "out" / "regress.html").read_text()
    assert "<td>75.00</td>" in page and "hit rate, % of tokens" in page


def test_against_its_own_baseline_it_passes(tmp_path):
    base = tmp_path / "base.json"
    with ChatServer() as server:
        assert invoke(server, tmp_path, *BOTH, "--save-baseline", base).exit_code == 0
        result = invoke(server, tmp_path, *BOTH, "--baseline", base, "--restart")
    assert result.exit_code == 0, result.output
    assert "no regression in 7 metrics" in result.output
    assert report_of(tmp_path)["passed"] is True
    assert set(outcomes(tmp_path).values()) == {"pass"}


def test_a_lower_hit_rate_is_a_regression(tmp_path):
    base, new = tmp_path / "base.json", tmp_path / "new.json"
    with ChatServer() as server:
        invoke(server, tmp_path, *PERFORMANCE, "--save-baseline", base)
        server.hit_tokens -= 6  # of 1,000: 0.6 points in the second run
        worse = (*PERFORMANCE, "--restart", "--baseline", base)
        result = invoke(server, tmp_path, *worse, "--save-baseline", new)
        assert result.exit_code == 1, result.output
        assert (
            "1 of 6 metrics regressed: hit rate" in result.output and "REGRESSION" in result.output
        )
        assert report_of(tmp_path)["passed"] is False
        assert outcomes(tmp_path)["hit-rate"] == "REGRESSION"
        assert 'class="bad"' in (tmp_path / "out" / "regress.html").read_text()
        assert not new.exists() and "not saved" in result.output
        # The same measurement, judged anew.
        lenient = (*PERFORMANCE, "--baseline", base, "--tolerance", "hit-rate=20")
        assert invoke(server, tmp_path, *lenient, "--rejudge").exit_code == 0


def test_a_lower_accuracy_is_a_regression(tmp_path):
    base = tmp_path / "base.json"
    with ChatServer(answer=lambda number: f"ANSWER: {correct_letter(number)}") as server:
        arguments = (*ACCURACY, "--concurrency", "1")
        result = invoke(server, tmp_path, *arguments, "--save-baseline", base)
        assert result.exit_code == 0, result.output
        assert report_of(tmp_path)["accuracy"]["percent"] == 100
        server.answer = lambda _: None  # such is a reasoning that never ends
        result = invoke(server, tmp_path, *arguments, "--baseline", base, "--restart")
    assert result.exit_code == 1, result.output
    assert report_of(tmp_path)["accuracy"]["unanswered"] == NUM_QUESTIONS
    assert "8 of 8 texts have no answer in them" in result.output


def test_questions_are_asked_as_told(tmp_path):
    with ChatServer() as server:
        arguments = ("--gpqa-max-tokens", "77", "--temperature", "0.6", "--concurrency", "3")
        assert invoke(server, tmp_path, *ACCURACY, *arguments).exit_code == 0
    assert len(server.questions) == NUM_QUESTIONS
    for body in server.questions:
        assert (body["model"], body["max_tokens"], body["temperature"]) == ("tiny", 77, 0.6)
        ((message),) = body["messages"]
        assert message["role"] == "user" and "A) " in message["content"]
    assert len({body["messages"][0]["content"] for body in server.questions}) == NUM_QUESTIONS


def test_a_server_that_dies_among_questions(tmp_path):
    """What was answered is kept; the same command asks the rest."""
    arguments = (*ACCURACY, "--concurrency", "1")
    with ChatServer(fails_from=5) as server:
        result = invoke(server, tmp_path, *arguments)
        assert result.exit_code == 2, result.output
        assert "/v1/chat/completions: status 500: the engine died" in result.output
        assert "the same command goes on with it" in result.output
        assert not (tmp_path / "out" / "regress.json").exists()
        server.fails_from = None
        already = len(server.questions)
        result = invoke(server, tmp_path, *arguments)
        assert result.exit_code == 0, result.output
    assert len(server.questions) - already == NUM_QUESTIONS - 5
    assert report_of(tmp_path)["accuracy"]["settings"]["questions"] == NUM_QUESTIONS


def test_a_server_that_dies_behind_the_load(tmp_path):
    """The finished step is kept and is not measured again."""
    with ChatServer(fails_from=7) as server:
        result = invoke(server, tmp_path, *BOTH)
        assert result.exit_code == 2, result.output
        assert "0 of 8 questions were answered" in result.output
        assert not (tmp_path / "out" / "regress.json").exists()
        server.fails_from = None
        result = invoke(server, tmp_path, *BOTH)
        assert result.exit_code == 0, result.output
    assert "performance was measured at 20" in result.output
    assert [path for path, _ in server.bodies].count("/v1/completions") == 7
    assert any("performance was measured at" in note for note in report_of(tmp_path)["notes"])


@pytest.mark.parametrize(
    ("behaviour", "what"),
    [
        ("fail", "ais_bench ended with 1 and 'no such model': see"),
        ("lose", "5 of 6 requests were answered"),
    ],
)
def test_a_tool_that_fails(tmp_path, monkeypatch, behaviour, what):
    monkeypatch.setenv("FAKE_AIS_BENCH", behaviour)
    with ChatServer() as server:
        result = invoke(server, tmp_path, *PERFORMANCE)
    assert result.exit_code == 2, result.output
    assert what in result.output and "ais_bench" in result.output
    assert not (tmp_path / "out" / "finished.json").exists()


def test_an_interrupted_load_leaves_no_process(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_AIS_BENCH", "hang")
    runs = tmp_path / "out/tools/performance-ais_bench/runs"

    def interrupt():
        while not runs.is_dir():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt, daemon=True)
    with ChatServer() as server:
        thread.start()
        result = invoke(server, tmp_path, *PERFORMANCE)
    assert result.exit_code == 130, result.output
    assert "the same command goes on with it" in result.output
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(runs) not in listing


@pytest.fixture
def interruptible():
    """A shell may have started the tests in the background, where it ignores interruptions."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interruption_among_questions(tmp_path, interruptible):
    def answer(number):
        if number == 3:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        return "ANSWER: A"

    with ChatServer(answer=answer) as server:
        arguments = (*ACCURACY, "--concurrency", "1")
        assert invoke(server, tmp_path, *arguments).exit_code == 130
        server.answer = lambda _: "ANSWER: A"
        assert invoke(server, tmp_path, *arguments).exit_code == 0
    # The fourth was under way when it was interrupted, and was asked again.
    assert len(server.questions) == NUM_QUESTIONS + 1


def test_ais_bench_goes_on_with_its_own_run(tmp_path):
    arguments = ("--suite", "accuracy", "--gpqa-file", QUESTIONS, "--tokenizer", "tokenizer")
    with ChatServer(fails_from=2) as server:
        assert invoke(server, tmp_path, *arguments).exit_code == 2
        server.fails_from = None
        result = invoke(server, tmp_path, *arguments)
    assert result.exit_code == 0, result.output
    assert report_of(tmp_path)["accuracy"]["settings"]["tool"] == "ais_bench"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--suite", "speed"), "--suite speed: allowed are performance, accuracy"),
        (("--suite", "accuracy"), "--gpqa-file: accuracy needs"),
        (("--tool", "evalscope"), "--tool evalscope: allowed are auto, ais_bench and vllm"),
        ((*PERFORMANCE, "--model", "big"), "--model big: http://127.0.0.1"),
        ((*PERFORMANCE, "--baseline", "none.json"), "--baseline none.json: "),
        ((*PERFORMANCE, "--save-baseline", "."), "--save-baseline .: is a folder"),
        ((*PERFORMANCE, "--rejudge"), "holds no finished performance"),
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


def test_a_server_without_a_prefix_cache(tmp_path):
    with ChatServer(has_cache_counters=False) as server:
        result = invoke(server, tmp_path, *PERFORMANCE)
    assert (result.exit_code, server.bodies) == (2, [])
    assert "there is no vllm:prefix_cache_queries_total" in result.output


def test_another_run_is_not_mixed_in(tmp_path):
    with ChatServer() as server:
        assert invoke(server, tmp_path, *PERFORMANCE).exit_code == 0
        other = (*PERFORMANCE, "--requests", "7")
        result = invoke(server, tmp_path, *other)
        assert result.exit_code == 2 and "requests 6, now 7" in result.output
        assert invoke(server, tmp_path, *other, "--restart").exit_code == 0
    assert report_of(tmp_path)["performance"]["loads"][0]["times"]["requests"] == 7


def test_another_load_is_not_compared(tmp_path):
    base = tmp_path / "base.json"
    with ChatServer() as server:
        invoke(server, tmp_path, *PERFORMANCE, "--save-baseline", base)
        already = len(server.bodies)
        other = (*PERFORMANCE, "--baseline", base, "--restart", "--requests", "7")
        result = invoke(server, tmp_path, *other)
        assert result.exit_code == 2
        assert "performance was measured otherwise" in result.output
        result = invoke(server, tmp_path, *BOTH, "--baseline", base, "--restart")
        assert result.exit_code == 2 and "accuracy was not measured then" in result.output
    assert len(server.bodies) == already


def test_prompts_of_another_length_are_noticed(tmp_path):
    with ChatServer() as server:
        result = invoke(server, tmp_path, *PERFORMANCE, "--input-tokens", "500")
    assert result.exit_code == 0, result.output
    assert "the prompts had 6,000 tokens, 3,000 were asked for" in result.output


@pytest.mark.parametrize(
    ("prompt_tokens", "what"),
    [(1100, "looked up 7,700 prompt tokens, the tool sent 7,000"), (0, "looked nothing up")],
)
def test_other_look_ups_are_noticed(tmp_path, prompt_tokens, what):
    with ChatServer(prompt_tokens=prompt_tokens, hit_tokens=0) as server:
        result = invoke(server, tmp_path, *PERFORMANCE)
    assert result.exit_code == 0, result.output
    assert what in result.output
    assert [what in note for note in report_of(tmp_path)["notes"]] == [True]


def test_a_finished_run_is_not_passed_off_as_a_new_one(tmp_path):
    """Twice with the same --out: no load is sent, so there is no verdict either."""
    base = tmp_path / "base.json"
    with ChatServer() as server:
        assert invoke(server, tmp_path, *PERFORMANCE, "--save-baseline", base).exit_code == 0
        before, already = report_of(tmp_path), len(server.bodies)
        result = invoke(server, tmp_path, *PERFORMANCE, "--baseline", base)
        assert result.exit_code == 2, result.output
        assert "holds a finished run" in result.output and "--rejudge" in result.output
        assert (report_of(tmp_path), len(server.bodies)) == (before, already)


def test_a_finished_run_is_judged_anew_on_request_without_the_server(tmp_path):
    base = tmp_path / "base.json"
    with ChatServer() as server:
        assert invoke(server, tmp_path, *PERFORMANCE, "--save-baseline", base).exit_code == 0
    arguments = (*PERFORMANCE, "--baseline", base, "--rejudge")
    result = invoke(server, tmp_path, *arguments)
    assert result.exit_code == 0, result.output
    assert "no regression in 6 metrics" in result.output
    assert any("performance was measured at 20" in note for note in report_of(tmp_path)["notes"])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"started": 1_700_000_001.0}, "server: started"),
        ({"root": "/models/other"}, "server: root '/models/tiny', now '/models/other'"),
        ({"version": "0.20.3"}, "server: vllm_version '0.20.2', now '0.20.3'"),
    ],
)
def test_an_interrupted_run_does_not_go_on_with_another_server(tmp_path, change, what):
    arguments = (*ACCURACY, "--concurrency", "1")
    with ChatServer(fails_from=5) as server:
        assert invoke(server, tmp_path, *arguments).exit_code == 2
        server.fails_from = None
        for name, value in change.items():
            setattr(server, name, value)
        result = invoke(server, tmp_path, *arguments)
        assert result.exit_code == 2 and what in result.output, result.output
        assert len(server.questions) == 6
        assert invoke(server, tmp_path, *arguments, "--restart").exit_code == 0


def test_a_server_that_hides_its_start_is_not_taken_for_the_same(tmp_path):
    """With several API servers vLLM's /metrics does not say when it started."""
    arguments = (*ACCURACY, "--concurrency", "1")
    with ChatServer(fails_from=5, started=None) as server:
        assert invoke(server, tmp_path, *arguments).exit_code == 2
        server.fails_from = None
        result = invoke(server, tmp_path, *arguments)
        assert result.exit_code == 2 and "--same-server" in result.output, result.output
        assert len(server.questions) == 6
        assert invoke(server, tmp_path, *arguments, "--same-server").exit_code == 0
    assert len(server.questions) == 6 + NUM_QUESTIONS - 5


def test_a_failed_run_leaves_a_finished_report(tmp_path, monkeypatch):
    with ChatServer() as server:
        assert invoke(server, tmp_path, *PERFORMANCE).exit_code == 0
        before = report_of(tmp_path)
        monkeypatch.setenv("FAKE_AIS_BENCH", "fail")
        assert invoke(server, tmp_path, *PERFORMANCE, "--restart").exit_code == 2
        assert report_of(tmp_path) == before
        assert (tmp_path / "out" / "regress.html").exists()
    assert invoke(server, tmp_path, *PERFORMANCE, "--restart").exit_code == 2
    assert report_of(tmp_path) == before


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


def test_loads_are_repeated_behind_those_for_warming_up(tmp_path):
    """What is sent is counted: 2 + 3 loads of 6 requests, each with one ahead of it."""
    hits = iter([0, 0, 750, 700, 800])
    often = (*PERFORMANCE, "--warmup", "2", "--repeats", "3")
    with ChatServer(hits_of_load=lambda number: next(hits), requests_of_load=7) as server:
        result = invoke(server, tmp_path, *often)
    assert result.exit_code == 0, result.output
    assert [path for path, _ in server.bodies].count("/v1/completions") == 5 * 7
    report = report_of(tmp_path)
    rates = [load["cache"]["hit_rate_percent"] for load in report["performance"]["loads"]]
    assert rates == [75, 70, 80]
    hit_rate = report["verdicts"][0]
    assert hit_rate["now"] == {"median": 75, "min": 70, "max": 80, "loads": 3}
    assert hit_rate["noise"] == 10 and " 10.00 not compared" in result.output
    assert "3 (medians are judged), behind 2 for warming up" in result.output


def test_an_interrupted_repetition_goes_on_with_the_next_load(tmp_path):
    often = (*PERFORMANCE, "--warmup", "1", "--repeats", "2")
    with ChatServer(fails_from=2 * 7) as server:
        assert invoke(server, tmp_path, *often).exit_code == 2
        server.fails_from, already = None, len(server.bodies)
        assert invoke(server, tmp_path, *often).exit_code == 0
        assert len(server.bodies) - already == 7
    assert len(report_of(tmp_path)["performance"]["loads"]) == 2


def test_a_baseline_of_fewer_loads_will_do_and_is_noted(tmp_path):
    base = tmp_path / "base.json"
    with ChatServer() as server:
        assert invoke(server, tmp_path, *PERFORMANCE, "--save-baseline", base).exit_code == 0
        more = (*PERFORMANCE, "--repeats", "2", "--baseline", base, "--restart")
        result = invoke(server, tmp_path, *more)
    assert result.exit_code == 0, result.output
    assert "the baseline's loads were 1 behind 0 to warm up, this run's 2 behind 0" in result.output


def test_all_files_are_written_and_named(tmp_path):
    base, junit, markdown = (tmp_path / "new" / name for name in ("b.json", "j.xml", "m.md"))
    files = ("--save-baseline", base, "--junit", junit, "--markdown", markdown)
    with ChatServer() as server:
        result = invoke(server, tmp_path, *PERFORMANCE, *files)
    assert result.exit_code == 0, result.output
    out = tmp_path / "out"
    written = [out / "regress.json", out / "regress.html", junit, markdown, base]
    assert all(path.stat().st_size for path in written)
    # A console may break a line inside a name.
    said = result.output.partition("written:")[2].replace(" ", "")
    assert said == ",".join(map(str, written))


@pytest.mark.parametrize("suite", [PERFORMANCE, ACCURACY])
def test_a_server_that_is_started_anew_meanwhile_is_noticed(tmp_path, suite):
    with ChatServer() as server:
        server.on_post = lambda: setattr(server, "started", 1_700_000_002.0)
        result = invoke(server, tmp_path, *suite)
    assert result.exit_code == 2 and "was started anew meanwhile" in result.output, result.output
    assert not (tmp_path / "out" / "finished.json").exists()
