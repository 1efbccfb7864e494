# SPDX-License-Identifier: Apache-2.0
"""What is computed beside the servers: rates where a promise breaks, new prompts, mean models."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import replay_seconds
from benchmarks.replay_seconds import (
    Calibration,
    arguments,
    crossing,
    difference,
    is_broken,
    main,
    mean_of,
    of_rate,
    promise_of,
    summary,
    write_traffic,
)
from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.cost.model import TERMS


def test_a_promise_breaks_between_two_rates():
    """Times that double with the rate reach 300 at 1.5 times the rate that has 200."""
    assert crossing([1, 2, 4], [100, 200, 400], 300) == pytest.approx(3.0)
    assert crossing([1, 2, 4], [100, 200, 400], 100) == pytest.approx(1.0)


def test_the_first_break_counts():
    assert crossing([1, 2, 3, 4], [100, 400, 100, 400], 200) == pytest.approx(2**0.5)


@pytest.mark.parametrize("times", [[100, 200], [400, 800]])
def test_a_promise_that_never_breaks_or_always_has_no_rate(times):
    assert crossing([1, 2], times, 300) is None


@pytest.fixture
def says(monkeypatch, tmp_path):
    """Let the model say times by rate; return what is asked of ``promise_of`` with a promise."""
    traffic = tmp_path / "traffic.jsonl"
    traffic.write_text('{"prompt_token_ids": [1], "output_length": 2}\n' * 150)

    def promise(p90_of, ttft_ms=None):
        def modelled(variant, requests, cost, rate, options):
            return {"p50": 100.0, "p90": p90_of(rate)}

        monkeypatch.setattr(replay_seconds, "modelled", modelled)
        options = Namespace(seconds=10, ttft_ms=ttft_ms)
        return promise_of("best", traffic, tmp_path / "cost.json", options)

    return promise


def test_a_promise_is_three_times_what_is_had_without_others(says):
    """A tenth waits 100 ms without others, and 100 ms more for each request per second."""
    broken, limit = says(lambda rate: 100.0 if rate < 0.1 else 100.0 + 100 * rate)
    assert limit == 300 and broken == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize(("ttft_ms", "why"), [(50, "nobody keeps it"), (1e9, "everybody keeps")])
def test_a_promise_that_says_nothing_is_refused(ttft_ms, why, says):
    with pytest.raises(BadInputError, match=f"--ttft-ms {ttft_ms:.0f}: {why}"):
        says(lambda rate: 100.0 + rate, ttft_ms)


def test_a_promise_is_broken_when_both_sides_say_so():
    def row(measured, modelled):
        return {"measured": {"p90": measured}, "modelled": {"p90": modelled}}

    assert is_broken(row(301, 400), 300)
    assert not is_broken(row(299, 400), 300) and not is_broken(row(400, 300), 300)


def test_a_model_in_the_middle_of_two(tmp_path):
    before, after = (
        Calibration(
            tmp_path / f"best-cost-{number}.json",
            {"version": 1, "host": number, "model": dict.fromkeys(TERMS, 1.0 + number)},
        )
        for number in range(2)
    )
    mean = mean_of(before, after)
    assert mean.name == "best-cost-0-to-best-cost-1.json"
    content = json.loads(mean.read_text())
    assert content == {"version": 1, "host": 0, "model": dict.fromkeys(TERMS, 1.5)}
    assert before.content["model"]["step_ms"] == 1.0


def test_a_calibration_says_how_long_a_prompt_takes():
    model = dict.fromkeys(TERMS, 0.0) | {"step_ms": 5.0, "token_us": 100.0}
    calibration = Calibration(Path("cost.json"), {"model": model, "error_percent": {"p90": 7}})
    # In two steps, as it is longer than what one step computes.
    num_tokens = replay_seconds.MAX_NUM_BATCHED_TOKENS + 1
    assert calibration.lone_prompt_ms(num_tokens) == pytest.approx(10 + num_tokens / 10)
    assert calibration.error_percent == 7


def test_what_rates_say_together():
    rows = [
        {"rate": rate, "measured": {"p90": 100 * rate}, "modelled": {"p90": 50 * rate}}
        for rate in (1.0, 2.0, 4.0)
    ]
    result = summary("best", rows, 150, [10.0, 12.0, 9.0])
    assert result["goodput"]["measured"] == pytest.approx(1.5)
    assert result["goodput"]["modelled"] == pytest.approx(3.0)
    assert result["drift_percent"] == pytest.approx(100 / 3)
    assert (result["variant"], result["ttft_ms"], result["rates"]) == ("best", 150, rows)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["--variant", "stock"], "expected upstream-like or best"),
        (["--gemma", "6", "--variant", "upstream-like"], "expected stock or best"),
        (["--scale", "0"], "expected a number above 0"),
        (["--ttft-ms", "-1"], "expected a number above 0"),
        (["--gemma", "0"], "expected a number above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(line, expected, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["replay_seconds", *line])
    with pytest.raises(SystemExit):
        arguments()
    assert f"{line[-2]} {line[-1]}: {expected}" in capsys.readouterr().err


def test_traffic_without_a_short_prompt_is_refused(tmp_path):
    options = Namespace(
        folder=tmp_path, workload="W1", seed=0, scale=1, max_prompt_tokens=9, max_output_tokens=1
    )
    with pytest.raises(BadInputError, match="--max-prompt-tokens 9: no prompt of W1 "):
        write_traffic(options)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["--workload", "nonsense:12"], "--workload nonsense:12: neither a file"),
        (["--out", "file/seconds.json"], "--out file: is a file, expected a folder"),
        (["--folder", "file"], "--folder file: is a file, expected a folder"),
    ],
)
def test_bad_input_is_one_sentence_before_anything_is_made(
    line, expected, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["replay_seconds", *line])
    Path("file").touch()
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith(f"error: {expected}")
    assert said.count("\n") == 1 and not list(Path().rglob("config.json"))


@pytest.mark.parametrize(
    ("ends", "code"), [(KeyboardInterrupt(), 130), (RuntimeError("the server ended"), "error: ")]
)
def test_a_run_that_ends_early_leaves_the_results_of_another(
    ends, code, monkeypatch, tmp_path, capsys
):
    """Its own are beside them, and in the tables."""
    monkeypatch.chdir(tmp_path)
    result = summary("best", [], 150, [10.0, 12.0])
    line = ["replay_seconds", "--variant", "best", "--workload", "2:9:1:1"]
    monkeypatch.setattr("sys.argv", line)
    monkeypatch.setattr(replay_seconds, "make_model", lambda options: None)
    monkeypatch.setattr(replay_seconds, "compare", lambda *_: iter([result]))
    main()
    finished = Path("seconds.json").read_text()
    assert json.loads(finished) == [result]

    def compare(*_):
        yield result | {"ttft_ms": 99}
        raise ends

    monkeypatch.setattr(replay_seconds, "compare", compare)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    assert str(ended.value.code).startswith(str(code)) and "99 ms" in capsys.readouterr().out
    assert Path("seconds.json").read_text() == finished
    assert json.loads(Path("seconds.partial.json").read_text())[0]["ttft_ms"] == 99


def test_a_difference_is_of_what_was_measured():
    assert difference(110.0, 100.0) == "+10 %" and difference(80.0, 100.0) == "-20 %"
    assert difference(None, 100.0) == difference(1.0, None) == "-"


def test_prompts_of_another_rate_share_what_they_shared(tmp_path):
    traffic = tmp_path / "traffic.jsonl"
    prompts = [[1, 2, 3], [1, 2, 4], [5]]
    rows = [{"prompt_token_ids": prompt, "output_length": 2} for prompt in prompts]
    traffic.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = Namespace(seconds=10)
    path, num_requests = of_rate(traffic, 2.0, options)
    copies = [json.loads(line) for line in path.read_text().splitlines()]
    one, two, three = (copy["prompt_token_ids"] for copy in copies)
    assert one[:2] == two[:2] and one[2] != two[2] and three[0] not in one
    assert not set(one) & {1, 2, 3} and all(copy["output_length"] == 2 for copy in copies)
    assert num_requests == 3 and of_rate(traffic, 3.0, options)[0] != path


@pytest.mark.parametrize(("rate", "num_requests"), [(0.02, 100), (2.0, 120), (99.0, 150)])
def test_as_many_requests_as_come_at_a_rate(rate, num_requests, tmp_path):
    traffic = tmp_path / "traffic.jsonl"
    traffic.write_text('{"prompt_token_ids": [1], "output_length": 2}\n' * 150)
    assert of_rate(traffic, rate, Namespace(seconds=60))[1] == num_requests
