# SPDX-License-Identifier: Apache-2.0
"""A server whose steps take the time that a planted cost model says."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from itertools import takewhile

from aiohttp import web

from tests.ut.evaluation.replay.http.completions_server import CompletionsServer
from vllm_ascend_evaluation.replay.cost.model import CostModel, StepWork, pairs_among

GRANULE = 16


@dataclass
class _Live:
    prompt: int
    wanted: int
    computed: int = 0
    given: int = 0
    tokens: asyncio.Queue = field(default_factory=asyncio.Queue)


@dataclass
class PlantedServer(CompletionsServer):
    """Schedules as vLLM does: answers first, then prompts, in chunks, behind what it knows.

    Attributes:
        model: How long steps take.
        chunk: ``--max-num-batched-tokens``.
        tells_chunk: Whether ``/server_info`` says that.
        num_others: Requests of others that run, as ``/metrics`` has it.
        answered_others: Requests of others, by now, as ``/metrics`` has it.
        metrics: Whether there is such a page at all.
        hits: What it says that it found of every prompt beside what it knows.
        knows: Whether it knows how the prompt before began.
        drafts: Tokens in one piece of an answer.
        engines: Ranks of which ``/metrics`` tells.
    """

    model: CostModel = field(default_factory=CostModel)
    chunk: int = 512
    tells_chunk: bool = True
    num_others: int = 0
    answered_others: int = 0
    metrics: bool = True
    hits: int = 0
    knows: bool = True
    drafts: int = 1
    engines: int = 1
    max_model_len: int | None = 4096

    def _add_routes(self, app):
        self._live, self._answered, self._wake = [], 0, asyncio.Event()
        self._known, self.num_found = [], 0
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/version", self._version)
        app.router.add_get("/server_info", self._server_info)
        self._engine = self._loop.create_task(self._run_engine())

    async def _version(self, request):
        return web.json_response({"version": "0.20.2"})

    async def _server_info(self, request):
        if not self.tells_chunk:
            return web.Response(status=404)
        config = {"scheduler_config": {"max_num_batched_tokens": self.chunk}}
        return web.json_response({"vllm_config": config})

    async def _metrics(self, request):
        if not self.metrics:
            return web.Response(text="# nothing\n")
        hits = self.hits * len(self.bodies) + self.num_found
        rows = {
            'vllm:num_requests_running{engine="0"}': self.num_others,
            "vllm:num_requests_waiting": 0,
            "vllm:prefix_cache_hits_total": hits,
            "vllm:request_success_total": self._answered + self.answered_others,
            "process_start_time_seconds": 1_700_000_000,
        }
        kinds = {name: "counter" if name.endswith("_total") else "gauge" for name in rows}
        page = "".join(
            f"# TYPE {n.partition('{')[0]} {kinds[n]}\n{n} {value}\n" for n, value in rows.items()
        )
        waiting = "vllm:num_requests_waiting"
        ranks = "".join(f'{waiting}{{engine="{rank}"}} 0\n' for rank in range(self.engines))
        return web.Response(text=page.replace(f"{waiting} 0\n", ranks))

    async def _stream(self, request, body, number):
        await asyncio.sleep(self.model.front_end_ms / 1000)
        found = self._found(body["prompt"]) if self.knows else 0
        live = _Live(len(body["prompt"]), body["max_tokens"], found)
        self._live.append(live)
        self._wake.set()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in range(body["max_tokens"]):
            await live.tokens.get()
            if piece % self.drafts == 0:
                await _send(response, {"choices": [{"index": 0, "text": "a"}], "usage": None})
        usage = {"prompt_tokens": live.prompt, "completion_tokens": body["max_tokens"]}
        if self.tells_details and self.hits + found:
            usage["prompt_tokens_details"] = {"cached_tokens": self.hits + found}
        self._answered += 1
        await _send(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    def _found(self, prompt):
        """Return how much of a prompt is known; its last token is computed in any case."""
        same = (one == other for one, other in zip(prompt[:-1], self._known, strict=False))
        found = sum(takewhile(bool, same)) // GRANULE * GRANULE
        self._known = prompt
        self.num_found += found
        return found

    async def _run_engine(self):
        ends = time.perf_counter()
        while True:
            if not self._live:
                self._wake.clear()
                await self._wake.wait()
                ends = time.perf_counter()
            work, given = self._schedule()
            ends += self.model.step_duration_ms(work) / 1000
            await asyncio.sleep(max(ends - time.perf_counter(), 0))
            for live in given:
                live.given += 1
                live.tokens.put_nowait(None)
            self._live = [live for live in self._live if live.given < live.wanted]

    def _schedule(self):
        """Return the work of a step, and the requests that get a token of it."""
        left, work, given = self.chunk, StepWork(), []
        for live in self._live:
            if live.computed >= live.prompt:
                live.computed += 1
                left -= 1
                work += StepWork(0, 1, 1, decode_rows=live.computed)
                given.append(live)
        for live in self._live:
            if live not in given and left > 0:
                new = min(left, live.prompt - live.computed)
                work += StepWork(0, 1, new, pairs_among(new), new * live.computed)
                live.computed += new
                left -= new
                if live.computed == live.prompt:
                    given.append(live)
        return work, given


async def _send(response, event):
    await response.write(f"data: {json.dumps(event)}\n\n".encode())
