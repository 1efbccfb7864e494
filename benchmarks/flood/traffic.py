# SPDX-License-Identifier: Apache-2.0
"""Normal traffic and a flood on a real scheduler: runs in a process per variant."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import count
from math import ceil
from typing import Any

import numpy as np

from benchmarks.children import answer_all
from benchmarks.flood.results import Cell, Flood, Mixture
from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.commands import GIB
from vllm_ascend_evaluation.replay.runs.job import Job

SHARED_TOKENS, OWN_TOKENS, ROUNDS = 28_672, 512, 3
PROGRESS = "@progress "  # what lines start with that tell a share
_VOCABULARY = 100_000
_PROBES = 48
_FIRST_PROMPTS = 16  # each looked at: dense caching is empty behind a few


def _tokens(*seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, _VOCABULARY, count).tolist()


def _prompt(prefix: int, visit: int) -> list[int]:
    return _tokens(0, prefix, count=SHARED_TOKENS) + _tokens(1, prefix, visit, count=OWN_TOKENS)


class _Traffic:
    """A scheduler, and who talks to it."""

    def __init__(self, job: Job, num_prefixes: int) -> None:
        from vllm_ascend.dry_run.worker import SamplingWorker
        from vllm_ascend_evaluation.replay.runs.child import build_job_scheduler

        self.scheduler = build_job_scheduler(job)
        self._worker = SamplingWorker(self.scheduler)
        self._num_prefixes = num_prefixes
        self._count = 0

    def warm(self) -> None:
        """Ask for all prefixes in turn, every time with another end."""
        for visit in range(ROUNDS):
            for prefix in range(self._num_prefixes):
                self.send(_prompt(prefix, visit))

    def send(self, prompt: list[int]) -> int:
        """Have one prompt answered with one token; return its hit in tokens."""
        self.scheduler.add_request(self._request(prompt))
        hit = 0
        while self.scheduler.requests:
            output = self.scheduler.schedule()
            # It starts behind its hit, in its first step; nobody preempts it.
            hit += sum(new.num_computed_tokens for new in output.scheduled_new_reqs)
            self.scheduler.update_from_output(output, self._worker.execute(output))
        return hit

    def hit_rate(self) -> float:
        """Return what normal traffic would hit now, in percent; nothing is moved by it."""
        hits = 0
        for prefix in range(self._num_prefixes):
            request = self._request(_prompt(prefix, ROUNDS))
            hits += self.scheduler.kv_cache_manager.get_computed_blocks(request)[1]
            self.scheduler.kv_cache_manager.free(request)
        return 100 * hits / (self._num_prefixes * (SHARED_TOKENS + OWN_TOKENS))

    def _request(self, prompt: list[int]) -> Any:
        from vllm_ascend.dry_run.scheduler import make_request

        self._count += 1
        return make_request(self.scheduler, str(self._count), prompt, 1)


def _cell(job: Job, prompt_tokens: int) -> Cell:
    return Cell(job.variant, job.block_size, job.kv_memory_bytes / GIB, prompt_tokens)


def measure(job: Job, num_prefixes: int, prompt_tokens: int) -> Flood:
    """Flood until nothing is left to hit, and print how far it is."""
    traffic = _Traffic(job, num_prefixes)
    traffic.warm()
    num_blocks = traffic.scheduler.kv_cache_manager.block_pool.num_gpu_blocks
    # As many tokens as C4 blocks of the whole pool cover, twice: nothing old is left behind them.
    most = 2 * num_blocks * 4 * job.block_size
    points = [(0, traffic.hit_rate())]
    every = ceil(most // 2 / _PROBES / prompt_tokens)
    for number in count(1):
        if not points[-1][1] or (sent := number * prompt_tokens) > most:
            break
        traffic.send(_tokens(2, number, count=prompt_tokens))
        if number <= _FIRST_PROMPTS or number % every == 0:
            points.append((sent, traffic.hit_rate()))
            print(f"{PROGRESS}{sent / most}", flush=True)
    return Flood(
        **asdict(_cell(job, prompt_tokens)),
        num_blocks=num_blocks,
        points=points,
    )


def mix(job: Job, num_prefixes: int, prompt_tokens: int, between: int) -> Mixture:
    """Let normal traffic go on for two rounds, and print how far it is."""
    traffic = _Traffic(job, num_prefixes)
    traffic.warm()
    hits, flood = 0, count()
    for number in range(2 * num_prefixes):
        for _ in range(between):
            traffic.send(_tokens(2, next(flood), count=prompt_tokens))
        visit, prefix = divmod(number, num_prefixes)
        hits += traffic.send(_prompt(prefix, ROUNDS + visit))
        print(f"{PROGRESS}{number / (2 * num_prefixes)}", flush=True)
    return Mixture(
        **asdict(_cell(job, prompt_tokens)),
        between=between,
        hit_rate=100 * hits / (2 * num_prefixes * (SHARED_TOKENS + OWN_TOKENS)),
    )


def answer(question: Any) -> dict[str, Any]:
    """Return what a cell comes to, or why it is refused."""
    job = Job.from_json(json.dumps(question["job"]))
    if job.patched:
        import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
    arguments = job, question["prefixes"], question["prompt_tokens"]
    between = question["between"]
    try:
        result = measure(*arguments) if between is None else mix(*arguments, between)
    except BadInputError as error:
        return {"refusal": str(error)}
    return {"result": asdict(result)}


if __name__ == "__main__":
    answer_all(answer)
