# SPDX-License-Identifier: Apache-2.0
"""Stands in for the command ``ais_bench``, which has an environment of its own.

It takes the arguments that ours gives, reads a configuration as ours writes it (with variables of
the environment in it, which it tells to its log, as mmengine does), sends as many requests, and
leaves result files in the real format. ``FAKE_AIS_BENCH`` in the environment makes it misbehave:
``fail``, ``quit`` (in the midst), ``lose`` (a request), or ``hang``.
"""

import argparse
import csv
import json
import os
import re
import sys
import time
import urllib.request
from pathlib import Path

from tests.ut.evaluation.regress.ais_bench_files import write_accuracy, write_performance
from tests.ut.evaluation.regress.test_ais_bench import read_config

API_KEY = []


def substitute(text):
    """Fill in variables of the environment."""

    def fill(match):
        name, default = match.groups()
        value = os.environ.get(name, default)
        print(f"Using env variable `{name}` with value of {value} to replace item in config.")
        return value

    return re.sub(r"\{\{\$(\w+):(.*?)\}\}", fill, text)


def post(url, body):
    """Send a request and return its answer, ``None`` if it is refused."""
    headers = {"Content-Type": "application/json"}
    if API_KEY:
        headers["Authorization"] = f"Bearer {API_KEY[0]}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            return json.load(response)
    except OSError:
        return None


def ask(url, dataset):
    """Have the questions answered; return texts and right letters."""
    with (Path(dataset["path"]) / dataset["name"]).open(newline="") as file:
        num_questions = sum(row[7] != "Question" for row in csv.reader(file))
    answers = [post(f"{url}/v1/chat/completions", {"number": i}) for i in range(num_questions)]
    texts = [answer and answer["choices"][0]["message"]["content"] for answer in answers]
    return texts, [("ABCD" * num_questions)[-number % 4] for number in range(1, num_questions + 1)]


def main():
    """Run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--mode", choices=["all", "perf"], required=True)
    parser.add_argument("--work-dir", type=Path, required=True)
    parser.add_argument("--num-warmups", type=int, required=True)
    parser.add_argument("--reuse", action="store_true")
    options = parser.parse_args()
    print("fake ais_bench")
    behaviour = os.environ.get("FAKE_AIS_BENCH", "")
    if behaviour == "fail":
        sys.exit("no such model")
    config = substitute(options.config.read_text())
    _, updates = read_config(config)
    url = updates["models[0]"]["url"]
    API_KEY.extend(filter(None, [updates["models[0]"].get("api_key")]))
    run = options.work_dir / "20260102_030405"
    run.mkdir(parents=True, exist_ok=options.reuse)
    Path("tmp").mkdir(exist_ok=True)
    Path("tmp/1234_params.py").write_text(config)  # which its tasks read
    if behaviour == "quit":
        sys.exit(3)
    if behaviour == "hang":
        time.sleep(60)
    if options.mode == "perf":
        count = updates["datasets[0]"]["config"]["RequestCount"]
        numbers = [*range(options.num_warmups), *range(count)]
        answers = [post(f"{url}/v1/completions", {"number": i}) for i in numbers]
        lost = answers[-count:].count(None) + (behaviour == "lose")
        write_performance(
            run,
            count,
            **{
                "Failed Requests": lost,
                "Success Requests": count - lost,
                "Total Input Tokens": 1000 * count,
                "Total Generated Tokens": 8 * count,
            },
        )
    else:
        assert options.num_warmups == 0
        write_accuracy(run, *ask(url, updates["datasets[0]"]))


if __name__ == "__main__":
    main()
