# SPDX-License-Identifier: Apache-2.0
"""The real ``vllm serve`` with a tiny DeepSeek-V4, over HTTP: hits are what they must be.

One server for all tests, in their order; the last one ends it.
"""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast
from vllm.benchmarks.datasets import PrefixRepetitionRandomDataset

from tests.e2e.scraping import difference, own_metrics
from tests.e2e.server.faults import until_gone
from tests.e2e.server.processes import shared_memory_of
from tests.e2e.server.server import (
    BEST,
    GRANULE,
    MAX_MODEL_LEN,
    Server,
    cached,
    expected_hits,
    longest_hit,
    serve,
    tokens,
)
from tests.pages import blocks
from vllm_ascend_evaluation.models.tiny.maker import make_tiny_model

HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    make_tiny_model(folder / "model")
    # The name by which the quick start asks for it, behind the one of its folder.
    names = ("--served-model-name", str(folder / "model"), "tiny-dsv4")
    with serve(folder / "model", folder / "log", BEST, *names) as running:
        yield running


def test_it_says_what_is_in_force(server):
    log = server.log.read_text()
    (line,) = [line for line in log.splitlines() if "prefix cache: granule" in line]
    for part in (
        "hits are multiples of 128",
        "every 32,768 tokens",
        "scratch, spare tails, cached",
    ):
        assert part in line
    assert "WARNING" not in "".join(line for line in log.splitlines() if "prefix cache:" in line)
    print(f"healthy after {server.seconds_to_health:.0f} s")


@pytest.mark.parametrize("num_tokens", [127, 128, 129, 256, 1000, 4097])
def test_a_prompt_that_comes_again(server, num_tokens):
    prompt = tokens(num_tokens, seed=num_tokens)
    first, second = server.complete(prompt), server.complete(prompt)
    assert (cached(first), cached(second)) == (0, longest_hit(num_tokens))
    assert first["choices"][0]["token_ids"] == second["choices"][0]["token_ids"]


def test_a_chat(server):
    """Each turn hits all that was said before it, to the granule."""
    messages = [{"role": "system", "content": "The cache holds prefixes. " * 60}]
    said: list[list[int]] = []
    for turn in range(5):
        messages.append({"role": "user", "content": f"Question {turn}: which rows are read? " * 9})
        answer = server.post("/v1/chat/completions", messages=messages, max_tokens=20)
        (choice,) = answer["choices"]
        prompt = answer["prompt_token_ids"]
        assert cached(answer) == expected_hits([prompt], before=said)
        assert turn == 0 or cached(answer) > 0
        said.append(prompt + choice["token_ids"])
        messages.append({"role": "assistant", "content": choice["message"]["content"]})


def test_a_prefix_with_fresh_tails(server):
    """vLLM 42948: a long prefix is sent again and again, each time with another tail behind it."""
    prefix = tokens(3000, seed=1)
    hits = [
        cached(server.complete(prefix + tokens(num_tail, seed=turn)))
        for turn, num_tail in enumerate((0, 700, 1400, 0, 1400, 700))
    ]
    assert hits[0] == 0
    assert all(hit >= longest_hit(3000) for hit in hits[1:])


def test_streaming(server):
    prompt = tokens(700, seed=2)
    whole = server.complete(prompt, max_tokens=12)
    body = server.body(
        prompt=prompt, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    streamed: list[int] = []
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=300) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    *events, last = map(json.loads, lines)
    for event in events:
        for choice in event["choices"]:
            streamed += choice["token_ids"] or []
    assert streamed == whole["choices"][0]["token_ids"]
    assert cached(last) == longest_hit(700)


def test_metrics_count_what_requests_should_have_hit(server):
    common = tokens(900, seed=3)
    prompts = [common[:cut] + tokens(300, seed=cut) for cut in (900, 640, 641, 130, 100, 895)]
    before = server.metric(HITS), server.metric(QUERIES)
    answers = [server.complete(prompt) for prompt in prompts * 2]
    hits, queries = server.metric(HITS) - before[0], server.metric(QUERIES) - before[1]
    assert queries == sum(map(len, prompts * 2))
    assert hits == expected_hits(prompts * 2) == sum(map(cached, answers))


def test_own_metrics_over_http(server):
    """What ``/metrics`` shows grows by exactly what the requests did."""
    first = tokens(1000, seed=30)
    prompts = [first, first, first[:512] + tokens(488, seed=31), first[:640] + tokens(1, seed=32)]
    server.complete(tokens(200, seed=33))  # blocks are not known before the first step
    before = own_metrics(server.get("/metrics"))
    hits = [cached(server.complete(prompt)) for prompt in prompts]
    change = difference(own_metrics(server.get("/metrics")), before)
    blocks = {name: change.pop(name) for name in list(change) if name.startswith("kv_cache_blocks")}
    assert hits == [0, 896, 512, 640]
    assert change == {
        "prefix_hit_tokens_count": 4,
        "prefix_hit_tokens_sum": sum(hits),
        "prefix_lookup_seconds_count": 4,
        # All end inside a C128 block (16,384 tokens); 896 and 640 inside a C4 block (512) as well.
        "partial_hits_total": 3,
        "copied_blocks_total": 2 + 1 + 2,
        # Retention is `auto`: 512 is; 896, shortly behind it, is not worth a tail of its own.
        "kept_boundaries_total.replay": 1,
    }
    assert sum(blocks.values()) == 0, "a pool neither grows nor shrinks"
    assert blocks["kv_cache_blocks.cached"] > 0


def test_the_log_sums_up_every_interval(server):
    deadline = time.monotonic() + 300
    while not (lines := re.findall(r"Prefix cache: (.*)", server.log.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert all(re.search(r"blocks: used [\d,]+, scratch [\d,]+, spare ", line) for line in lines)


def test_concurrent_clients(server):
    """Sixteen at once are told what each is told alone."""
    common = tokens(600, seed=4)
    prompts = [common + tokens(50 + 40 * user, seed=50 + user) for user in range(16)]
    with ThreadPoolExecutor(16) as clients:
        together = list(clients.map(lambda prompt: server.complete(prompt, 8), prompts))
    alone = [server.complete(prompt, 8) for prompt in prompts]
    for one, other, prompt in zip(together, alone, prompts, strict=True):
        assert one["choices"][0]["token_ids"] == other["choices"][0]["token_ids"]
        assert cached(other) == longest_hit(len(prompt))


def test_a_client_that_disconnects(server):
    """Its request ends long before its last token; what it computed serves the next one."""
    prompt = tokens(1500, seed=5)
    body = server.body(prompt=prompt, max_tokens=10_000, stream=True)
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=300) as response:
        next(response.iter_lines())
    assert cached(server.complete(prompt)) == longest_hit(1500)
    deadline = time.monotonic() + 300
    while server.metric("vllm:num_requests_running"):
        assert time.monotonic() < deadline
        server.complete(prompt)  # requests running are counted in steps


def test_vllm_bench_serve(server, tmp_path):
    """Four prefixes, five prompts each: hits as computed from the very prompts it sends."""
    shape = {"prefix-len": 512, "suffix-len": 100, "num-prefixes": 4, "output-len": 4}
    options = [f"--prefix-repetition-{name}={value}" for name, value in shape.items()]
    before = server.metric(HITS)
    subprocess.run(
        [
            *(str(Path(sys.executable).with_name("vllm")), "bench", "serve"),
            *("--base-url", server.url, "--model", str(server.model), "--num-prompts", "20"),
            *("--dataset-name", "prefix_repetition", *options, "--max-concurrency", "1"),
            *("--seed", "7", "--save-result", "--result-dir", str(tmp_path)),
            *("--num-warmups", "0", "--ready-check-timeout-sec", "0"),
        ],
        check=True,
        capture_output=True,
    )
    (result,) = tmp_path.glob("*.json")
    assert json.loads(result.read_text())["completed"] == 20
    assert server.metric(HITS) - before == expected_hits(_prompts_of_bench(server, shape))


def _prompts_of_bench(server: Server, shape: dict[str, int]) -> list[list[int]]:
    """Return the prompts that ``vllm bench serve`` sends, in token ids."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(server.model)
    random.seed(7)
    np.random.seed(7)
    samples = PrefixRepetitionRandomDataset(random_seed=7, dataset_path=None).sample(
        tokenizer=tokenizer,
        num_requests=20,
        prefix_len=shape["prefix-len"],
        suffix_len=shape["suffix-len"],
        num_prefixes=shape["num-prefixes"],
        output_len=shape["output-len"],
    )
    return [tokenizer(sample.prompt)["input_ids"] for sample in samples]


def test_replay_against_the_server(server, tmp_path):
    """The project's own client reports what the server counted, and what was there to be hit."""
    before = server.metric(HITS)
    subprocess.run(
        [
            *(sys.executable, "-m", "vllm_ascend", "replay", "--url", server.url),
            *("--workload", "6:1200:1000:4", "--concurrency", "1", "--out", str(tmp_path)),
        ],
        check=True,
        capture_output=True,
    )
    report = json.loads((tmp_path / "report.json").read_text())
    (run,) = report["workloads"][0]["runs"]
    assert run["hit_tokens"] == 5 * (1000 // GRANULE * GRANULE) == server.metric(HITS) - before
    assert (run["num_requests"], run["prompt_tokens"]) == (6, 7200)


def test_the_quick_starts_commands(server, tmp_path):
    """What the page has a reader type prints what the page says, in its order."""
    shown = blocks("docs/quick-start.md")
    first = next(i for i, block in enumerate(shown) if block.text.startswith("ask()"))
    typed = expected = ""
    for block in shown[first:]:
        if block.language == "text":
            expected += block.text
        elif "requests.jsonl" in block.text or "overlay" in block.text:
            break
        elif block.commands():
            typed += block.text.replace(".venv/bin/python", sys.executable)
    typed = typed.replace("http://127.0.0.1:8000", server.url)
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", typed],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    asked, _, replayed = done.stdout.partition("\n40:2000:1800:8")
    assert asked == expected
    assert "87.36 %" in replayed


def test_bad_requests_change_nothing(server):
    prompt = tokens(500, seed=6)
    server.complete(prompt)
    too_long = server.body(prompt=tokens(MAX_MODEL_LEN + 1, seed=7), max_tokens=4)
    answer = httpx.post(f"{server.url}/v1/completions", json=too_long, timeout=300)
    assert answer.status_code == httpx.codes.BAD_REQUEST
    assert cached(server.complete(prompt)) == longest_hit(500)


def test_sigterm_while_serving(server):
    """Its clients are told what there is; it ends, and takes all of its processes with it."""
    body = server.body(prompt=tokens(GRANULE, seed=8), max_tokens=10_000, stream=True)
    shared_memory = shared_memory_of(server)
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=300) as response:
        lines = (line.removeprefix("data: ") for line in response.iter_lines() if line)
        next(lines)
        assert len(server.processes()) >= 3
        server.process.send_signal(signal.SIGTERM)
        *_, last, done = lines
    assert done == "[DONE]"
    (choice,) = json.loads(last)["choices"]
    assert choice["finish_reason"] == "abort"
    assert until_gone(server, shared_memory) == 0
