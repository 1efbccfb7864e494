# SPDX-License-Identifier: Apache-2.0
"""What a run ends with: verdicts, notes, files."""

from tests.ut.evaluation.regress.chat_server import ChatServer
from tests.ut.evaluation.regress.gate.command import (
    ACCURACY,
    BOTH,
    NUM_QUESTIONS,
    PERFORMANCE,
    correct_letter,
    invoke,
    outcomes,
    report_of,
)


def test_without_a_baseline_it_measures_and_says_so(tmp_path):
    with ChatServer() as server:
        result = invoke(server, tmp_path, *BOTH)
    assert result.exit_code == 0, result.output
    assert "there is no baseline to compare with" in result.output
    report = report_of(tmp_path)
    assert report["passed"] is None and set(outcomes(tmp_path).values()) == {"not compared"}
    (load,) = report["performance"]["loads"]
    cache = load["cache"]
    assert (cache["prompt_tokens"], cache["hit_tokens"]) == (7000, 5250)
    assert cache["hit_rate_percent"] == 75
    assert cache["counters"] == {"vllm_ascend:partial_hits_total": 14}
    assert load["times"]["ttft_avg_ms"] == 193.3
    assert (report["accuracy"]["correct"], report["accuracy"]["unanswered"]) == (2, 0)
    assert report["target"]["vllm_version"] == "0.20.2"
    assert report["notes"] == []
    page = (tmp_path / "out" / "regress.html").read_text()
    assert 'data-heading="now">75.00</td>' in page and "hit rate, % of tokens" in page


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


def test_prompts_of_another_length_are_noticed(tmp_path):
    with ChatServer() as server:
        result = invoke(server, tmp_path, *PERFORMANCE, "--input-tokens", "500")
    assert result.exit_code == 0, result.output
    assert "the prompts had 6,000 tokens, 3,000 were asked for" in result.output


def test_requests_of_others_are_noticed(tmp_path):
    with ChatServer(prompt_tokens=1100) as server:
        result = invoke(server, tmp_path, *PERFORMANCE)
    assert result.exit_code == 0, result.output
    (note,) = report_of(tmp_path)["notes"]
    assert "counted 7,700 prompt tokens, the tool sent 7,000: it had other clients" in note
    assert note in result.output


def test_a_cache_that_is_off_is_noticed(tmp_path):
    with ChatServer(hit_tokens=0) as server:
        result = invoke(server, tmp_path, *PERFORMANCE)
    assert result.exit_code == 0, result.output
    assert report_of(tmp_path)["notes"] == ["nothing was found in the prefix cache: is it on?"]


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
