# SPDX-License-Identifier: Apache-2.0
"""``calibrate`` against a server whose steps take planted times: its fit, files and refusals."""

import json
import os
import signal
import threading
from collections import Counter

import pytest
from typer.testing import CliRunner

from tests.ut.evaluation.calibrate.planted_server import PlantedServer
from vllm_ascend.__main__ import app
from vllm_ascend_evaluation.calibrate.shots import prefill_observation
from vllm_ascend_evaluation.replay.cost.model import CostModel, StepWork
from vllm_ascend_evaluation.replay.cost.stored import read_cost_model

# Long enough that what the stand-in and the client take beside it is little.
PLANTED = CostModel(6.0, 20.0, 200.0, 10.0, 6.0, 1000.0, 10.0)
FAST = CostModel(1.0, 1.0)


# A machine that is busy measures little, and wrongly: then for longer.
TRIES_S = (1.5, 4, 12, 36)


def calibrate(server, folder, *arguments, seconds=1.5):
    url = server if isinstance(server, str) else server.url
    fixed = ("calibrate", "--url", url, "--minutes", str(seconds / 60), "--concurrency", "4")
    arguments = (*fixed, "--out", str(folder / "cost.json"), *arguments)
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})


def told(model: CostModel) -> list[float]:
    """Return how long prompts and steps of answers take by a model, in ms."""
    prompts = ((100, 0), (1000, 0), (4000, 0), (4000, 3600))
    seen = [prefill_observation(tokens, 0.0, 512, cached) for tokens, cached in prompts]
    times = [observation.said_ms(model) for observation in seen]
    for live, context in ((1, 3000), (4, 500)):
        times.append(model.step_duration_ms(StepWork(1, live, live, decode_rows=live * context)))
    return times


def test_the_planted_times_are_found(tmp_path):
    for seconds in TRIES_S[1:]:
        with PlantedServer(model=PLANTED) as server:
            result = calibrate(server, tmp_path, seconds=seconds)
            bodies = server.bodies
        if result.exit_code == 0:
            found = told(read_cost_model(tmp_path / "cost.json", "dsv4-flash-a3"))
            if found == pytest.approx(told(PLANTED), rel=0.4):
                break
    else:
        pytest.fail(result.output)
    begun = Counter(tuple(body["prompt"][:16]) for body in bodies)
    assert max(begun.values()) == 2, "a prompt is followed by one that begins alike; others are new"
    said = " ".join(result.output.split())
    assert "prefill_pair_ns" in said and "kept apart: median" in said
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
    stored = json.loads((tmp_path / "cost.json").read_text())
    assert stored["vllm"] == "0.20.2" and stored["served_model"] == "tiny" and stored["complete"]
    assert stored["settings"]["max_num_batched_tokens"] == 512
    points = stored["points"]
    assert len(points) == stored["num_fitted"] + stored["error_percent"]["num_points"]
    behind = [p for p in points if p["is_prefill"] and p["computed_tokens"] < p["prompt_tokens"]]
    assert behind, "prompts that go on behind a hit are measured as well"


@pytest.mark.parametrize("kind", [{"knows": False}, {"tells_details": False}])
def test_a_server_that_tells_of_no_hit_is_calibrated_as_well(tmp_path, kind):
    for seconds in TRIES_S:
        with PlantedServer(model=FAST, **kind) as server:
            result = calibrate(server, tmp_path, seconds=seconds)
        if result.exit_code == 0:
            break
    assert result.exit_code == 0, result.output
    points = json.loads((tmp_path / "cost.json").read_text())["points"]
    alone = [p for p in points if p["is_prefill"] and p["num_requests"] == 1]
    assert alone and all(p["computed_tokens"] == p["prompt_tokens"] for p in alone)
    assert any(p["is_prefill"] and p["num_requests"] > 1 for p in points), "prompts side by side"


@pytest.mark.parametrize(("longest", "is_noted"), [(512, False), (511, True)])
def test_steps_that_nobody_measured_are_noted(tmp_path, longest, is_noted):
    """Where a pause takes the time for the longest prompt, that is noted as well."""
    note = f"note: a step computes up to 512 tokens, and none of more than {longest} was measured"
    for seconds in TRIES_S:
        with PlantedServer(model=FAST) as server:
            limit = "--max-prompt-tokens", str(longest)
            result = calibrate(server, tmp_path, *limit, seconds=seconds)
        said = " ".join(result.output.split())
        if result.exit_code == 0 and (note in said if is_noted else "note:" not in said):
            break
    else:
        pytest.fail(result.output)


def test_requests_are_as_many_on_each_rank(tmp_path):
    for seconds in TRIES_S:
        with PlantedServer(model=FAST, engines=2) as server:
            result = calibrate(server, tmp_path, seconds=seconds)
        if result.exit_code == 0:
            break
    assert result.exit_code == 0, result.output
    assert server.most_in_flight == 2 * 4
    stored = json.loads((tmp_path / "cost.json").read_text())
    assert stored["settings"]["data_parallel_ranks"] == 2
    assert max(point["num_requests"] for point in stored["points"]) == 4


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ({"num_others": 2}, (), "2 requests are running or waiting there; calibrate it while"),
        ({"metrics": False}, (), "do not tell vllm:num_requests_running"),
        ({"hits": 16}, (), "found 16 of 64 tokens of a prompt in its cache"),
        ({"hits": 16, "tells_details": False}, (), "tokens were found in its cache"),
        ({"fails_from": 3}, (), "status 500: out of blocks"),
        ({"breaks_from": 3}, (), "the engine died"),
        ({"drafts": 3}, (), "calibrate without drafts"),
        ({"tells_chunk": False}, (), "--max-num-batched-tokens: the server does not say"),
        ({"vocab_size": 500}, (), "is out of vocabulary"),
        ({"max_model_len": 200}, (), "the server's --max-model-len 200: expected more than 256"),
        ({}, ("--max-num-batched-tokens", "99"), "--max-num-batched-tokens 99: the server has 512"),
        ({}, ("--model", "huge"), "--model huge: "),
        ({}, ("--layout", "nothing"), "--layout nothing: allowed are"),
        ({"api_key": "secret"}, (), "status 401"),
    ],
)
def test_a_server_that_cannot_be_calibrated_is_refused(tmp_path, kind, options, said):
    with Refusing(model=FAST, **kind) as server:
        result = calibrate(server, tmp_path, *options)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.split())
    assert result.output.count("error:") == 1 and not list(tmp_path.iterdir())


class Refusing(PlantedServer):
    """As planted, and it fails as the server does that it is made of."""

    async def _stream(self, request, body, number):
        if self.breaks_from is not None and number >= self.breaks_from:
            return await super(PlantedServer, self)._stream(request, body, number)
        return await super()._stream(request, body, number)


def test_a_server_that_is_not_there_is_refused(tmp_path):
    result = calibrate("http://127.0.0.1:9", tmp_path)
    assert result.exit_code == 2 and "cannot be reached" in " ".join(result.output.split())


def test_requests_of_others_meanwhile_are_told(tmp_path):
    server = PlantedServer(model=FAST)

    def note(number):
        server.answered_others = number // 5

    server.on_request = note
    with server:
        result = calibrate(server, tmp_path)
    assert result.exit_code == 2, result.output
    assert "requests of others meanwhile" in " ".join(result.output.split())
    assert not list(tmp_path.iterdir())


def interrupt_at(number, server):
    """Let the user press Ctrl-C as the server gets this request."""

    def on_request(at):
        if at == number:
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()

    server.on_request = on_request
    return server


def test_an_interrupt_early_writes_nothing(tmp_path, interruptible):
    with interrupt_at(3, PlantedServer(model=FAST)) as server:
        result = calibrate(server, tmp_path)
    assert result.exit_code == 130, result.output
    said = " ".join(result.output.split())
    assert "interrupted: nothing was written, for 0 measurements are too few" in said
    assert not list(tmp_path.iterdir())


def test_an_interrupt_late_keeps_what_was_measured(tmp_path, interruptible):
    with interrupt_at(200, PlantedServer(model=FAST)) as server:
        result = calibrate(server, tmp_path, seconds=60)
    assert result.exit_code == 130, result.output
    assert not json.loads((tmp_path / "cost.json").read_text())["complete"]
    read_cost_model(tmp_path / "cost.json", "dsv4-flash-a3")


def test_too_short_a_time_is_refused(tmp_path):
    with PlantedServer(model=PLANTED) as server:
        result = calibrate(server, tmp_path, seconds=1.2)
    assert result.exit_code == 2, result.output
    assert "are too few" in " ".join(result.output.split())
