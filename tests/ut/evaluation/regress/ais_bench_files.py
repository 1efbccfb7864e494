# SPDX-License-Identifier: Apache-2.0
"""Result files as ais-bench-benchmark 3.1.20260630 writes them, from a run against a tiny model.

The numbers of requests and questions are filled in; the times are of that run.
"""

import json
from pathlib import Path

CSV = """\
Performance Parameters,Stage,Average,Min,Max,Median,P75,P90,P99,N
E2EL,total,368.0 ms,233.4 ms,612.0 ms,262.5 ms,519.6 ms,607.8 ms,611.6 ms,{n}
TTFT,total,193.3 ms,58.8 ms,428.6 ms,85.4 ms,335.9 ms,423.9 ms,428.2 ms,{n}
TPOT,total,25.0 ms,21.1 ms,26.5 ms,25.6 ms,26.3 ms,26.4 ms,26.5 ms,{n}
ITL,total,21.8 ms,0.0 ms,45.7 ms,22.1 ms,27.8 ms,33.5 ms,41.3 ms,{n}
InputTokens,total,780.5,777.0,783.0,781.0,781.75,782.5,782.95,{n}
OutputTokens,total,8.0,8.0,8.0,8.0,8.0,8.0,8.0,{n}
OutputTokenThroughput,total,25.9562 token/s,13.072 token/s,34.2728 token/s,30.4905 token/s,\
33.3904 token/s,34.2144 token/s,34.267 token/s,{n}
"""
_TOTALS = {
    "Benchmark Duration": "1126.1059 ms",
    "Total Requests": 6,
    "Failed Requests": 0,
    "Success Requests": 6,
    "Concurrency": 1.9608,
    "Max Concurrency": 2,
    "Request Throughput": "5.3281 req/s",
    "Total Input Tokens": 4683,
    "Prefill Token Throughput": "4037.6612 token/s",
    "Total Generated Tokens": 48,
    "Input Token Throughput": "4158.5786 token/s",
    "Output Token Throughput": "42.6248 token/s",
    "Total Token Throughput": "4201.2033 token/s",
}


def write_performance(run: Path, requests: int, **totals: object) -> None:
    """Write the files of a performance run."""
    folder = run / "performances" / "vllm-api-general-stream"
    folder.mkdir(parents=True)
    (folder / "synthetic.csv").write_text(CSV.format(n=requests))
    counts = {"Total Requests": requests, "Success Requests": requests}
    values = {**_TOTALS, **counts, **totals}
    text = json.dumps({name: {"total": value} for name, value in values.items()}, indent=4)
    (folder / "synthetic.json").write_text(text)
    (folder / "synthetic_details.jsonl").write_text("{}\n")
    (folder / "synthetic_plot.html").write_text("<html>")


def write_accuracy(run: Path, texts: list[str | None], golds: list[str]) -> None:
    """Write the files of an accuracy run; a question of text ``None`` was not answered."""
    model = "vllm-api-general-chat"
    predictions = [
        {
            "data_abbr": "GPQA_diamond",
            "id": number,
            "success": text is not None,
            "uuid": f"{number:032x}",
            "origin_prompt": [{"role": "HUMAN", "prompt": "..."}],
            "prediction": text or "",
            "gold": gold,
        }
        for number, (text, gold) in enumerate(zip(texts, golds, strict=True))
    ]
    right = sum(f"ANSWER: {p['gold']}" in p["prediction"] for p in predictions)
    for kind, name, content in (
        ("predictions", "GPQA_diamond.jsonl", "\n".join(map(json.dumps, predictions)) + "\n"),
        ("results", "GPQA_diamond.json", json.dumps({"accuracy": 100 * right / len(texts)})),
    ):
        folder = run / kind / model
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
