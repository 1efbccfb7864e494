# SPDX-License-Identifier: Apache-2.0
"""The front end in front of several ranks: vLLM's own client, without its sockets.

The choice is made by the client's own method, patched or not. What it sees of the ranks is what it
would see in a server: its coordinator's counts, up to 100 ms old, and the ranks' messages.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from types import SimpleNamespace

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.core_client import DPLBAsyncMPClient
from vllm.v1.request import Request

COUNTS_EVERY_MS = 100.0
"""How often vLLM's coordinator publishes the requests that wait and run on every rank."""


class Balancer:
    """Chooses a rank for every request.

    Attributes:
        choice_us: How long each choice took, hashing included.
    """

    def __init__(self, schedulers: Sequence[Scheduler], *, by_cache: bool) -> None:
        """Stand in front of ranks that have nothing to do yet.

        Args:
            schedulers: Of the ranks.
            by_cache: Choose by what the ranks have cached; the patches must be in force.
        """
        self._schedulers = schedulers
        self._told_ms = 0.0
        self.choice_us: list[float] = []
        engines = [rank.to_bytes(2, "little") for rank in range(len(schedulers))]
        self._client = SimpleNamespace(
            core_engines=engines,
            client_index=0,
            client_count=1,
            engine_ranks_managed=list(range(len(engines))),
            eng_start_index=0,
            reqs_in_flight={},
            engine_inflight=Counter(),
            ascend_routing=None,
        )
        self._publish()
        if by_cache:
            from vllm_ascend.dp_routing.client import FrontEnd

            self._client.ascend_routing = FrontEnd(self._client)
            for rank in range(len(engines)):
                self.tell(rank)

    def choose(self, request: Request) -> int:
        """Return the rank that a request goes to."""
        sent = _to_send(request)
        start = time.perf_counter()
        engine = DPLBAsyncMPClient.get_core_engine_for_request(self._client, sent)
        self.choice_us.append((time.perf_counter() - start) * 1e6)
        return self._client.core_engines.index(engine)

    def tell(self, rank: int) -> None:
        """Hand on what a rank tells of its cache."""
        routing = self._client.ascend_routing
        log = getattr(self._schedulers[rank].kv_cache_manager.block_pool, "event_log", None)
        if routing is None or log is None:
            return
        from vllm_ascend.dp_routing.news import decode_news, encode_news

        if (news := log.take_news()) is not None:
            routing.router.hear(rank, decode_news(encode_news(news)))

    def hear(self, rank: int, outputs: EngineCoreOutputs, now_ms: float) -> None:
        """Hand on the outputs of a rank's step, which ends at ``now_ms``."""
        outputs.engine_index = rank
        _run(DPLBAsyncMPClient.process_engine_outputs(self._client, outputs))
        if now_ms - self._told_ms >= COUNTS_EVERY_MS:
            self._told_ms = now_ms
            self._publish()

    def _publish(self) -> None:
        # Later releases publish the use of the KV cache as a third number.
        self._client.lb_engines = [
            [len(rank.waiting), len(rank.running), rank.kv_cache_manager.usage]
            if hasattr(DPLBAsyncMPClient, "prepare_elastic_ep")
            else [len(rank.waiting), len(rank.running)]
            for rank in self._schedulers
        ]

    @property
    def num_predicted(self) -> int:
        """Requests whose hit was what the choice expected."""
        routing = self._client.ascend_routing
        return 0 if routing is None else routing.router.stats.num_exact


def _to_send(request: Request) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        mm_features=None,
        sampling_params=request.sampling_params,
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )


def _run(coroutine: Coroutine) -> None:
    """Run what is declared asynchronous but waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("vLLM's client waits for something")
