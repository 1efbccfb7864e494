# SPDX-License-Identifier: Apache-2.0
"""One front end's side: it hears its ranks, asks them where something is missing, and chooses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from msgspec import MsgspecError
from vllm.logger import init_logger
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.core_client import DPAsyncMPClient, DPLBAsyncMPClient

from vllm_ascend.dp_routing.asking import Asking
from vllm_ascend.dp_routing.news import decode_news
from vllm_ascend.dp_routing.router import Prompt, Router
from vllm_ascend.dp_routing.stats import RoutingStats

TELL_METHOD = "ascend_tell_cache"
"""The utility method by which a front end asks a rank for all that it has cached."""
LONG_PROMPT_TOKENS = 32_768
"""Longer prompts are hashed in a thread, so that the event loop goes on meanwhile."""

# Under vLLM's own name, whose handlers print it.
_logger = init_logger("vllm.plugins.vllm_ascend_backport")
_stats: list[RoutingStats] = []


def process_stats() -> RoutingStats | None:
    """Return the counters of this process's front end; ``None`` if it chooses nothing."""
    return _stats[-1] if _stats else None


class FrontEnd:
    """What a client of several ranks chooses by.

    Attributes:
        router: Knows the ranks' caches and loads.
    """

    def __init__(self, client: DPLBAsyncMPClient) -> None:
        self._begin_anew(client)
        # Requests that are hashed right now, and those of them that were aborted meanwhile
        self._hashing: set[str] = set()
        self._aborted: set[str] = set()
        self._prompts: dict[str, Prompt] = {}
        self._tasks: set[asyncio.Task] = set()

    def _begin_anew(self, client: DPLBAsyncMPClient) -> None:
        """Know nothing of any rank: neither what it has cached nor whether it tells."""
        self.router = Router(
            len(client.core_engines),
            client_index=client.client_index,
            client_count=client.client_count,
        )
        self._asking = [Asking() for _ in client.core_engines]
        _stats[:] = [self.router.stats]

    # Requests

    async def hash_prompt(self, request: EngineCoreRequest) -> bool:
        """Hash a prompt before its rank is chosen; return whether it is still to be sent."""
        request_id = request.request_id
        if _num_tokens(request) < LONG_PROMPT_TOKENS:
            self._prompts[request_id] = self.router.prompt_of(request)
            return True
        self._hashing.add(request_id)
        try:
            loop = asyncio.get_running_loop()
            prompt = await loop.run_in_executor(None, self.router.prompt_of, request)
            if request_id in self._aborted:
                return False
            self._prompts[request_id] = prompt
            return True
        finally:
            self._hashing.discard(request_id)
            self._aborted.discard(request_id)

    def abort(self, request_ids: list[str]) -> None:
        """Note aborts of requests that no rank has got yet."""
        self._aborted.update(self._hashing.intersection(request_ids))

    def choose(
        self,
        client: DPLBAsyncMPClient,
        request: EngineCoreRequest,
        vllms: Callable[[DPLBAsyncMPClient, EngineCoreRequest], bytes],
    ) -> bytes:
        """Return the engine for a request.

        Args:
            client: Who sends it.
            request: The request. A rank that its client named is taken. A further chunk of a
                streaming session, which bears its id, goes where the session is.
            vllms: vLLM's own choice. It keeps the books, and chooses where there is no prompt.
        """
        prompt = self._prompts.pop(request.request_id, None)
        if request.pooling_params is not None:
            return vllms(client, request)
        self._follow_scaling(client)
        session = client.reqs_in_flight.get(request.request_id)
        if session in client.core_engines:
            if request.resumable:  # otherwise it is no chunk: it tells that the session ends
                rank, num_tokens = client.core_engines.index(session), _num_tokens(request)
                self.router.send_more(request.request_id, num_tokens, rank)
            return session
        prompt = prompt or self.router.prompt_of(request)
        self._ask_unknown(client)
        is_named = request.data_parallel_rank is not None
        if is_named or not self.router.knows_any:
            engine = vllms(client, request)
            rank = client.core_engines.index(engine)
            if is_named:
                self.router.send(request.request_id, prompt, rank)
            else:
                self.router.stats.chosen[rank, "vllm"] += 1
            return engine
        rank = self.router.choose(request.request_id, prompt, client.lb_engines)
        # As vLLM does between two updates of the counts.
        client.lb_engines[rank][0] += client.client_count
        request.data_parallel_rank = rank
        try:
            return vllms(client, request)
        finally:
            request.data_parallel_rank = None

    def _follow_scaling(self, client: DPLBAsyncMPClient) -> None:
        """Begin anew if ranks were added or taken away (elastic expert parallelism)."""
        if len(client.core_engines) != self.router.num_ranks:
            self._begin_anew(client)
            self.ask_all(client)

    # Ranks

    def hear(self, client: DPLBAsyncMPClient, outputs: EngineCoreOutputs) -> None:
        """Take from a rank's outputs what concerns routing. Its news go no further."""
        rank = outputs.engine_index - client.engine_ranks_managed[0]
        if not 0 <= rank < self.router.num_ranks:
            return  # it has been scaled away
        tells = getattr(outputs.scheduler_stats, "ascend_cache_news", None) is not None
        must_ask = take_news(self.router, rank, outputs)
        if tells:
            self._asking[rank].heard(is_followed=not must_ask)
        if must_ask:
            self._ask(client, rank)

    def ask_all(self, client: DPLBAsyncMPClient) -> None:
        """Ask every rank for all that it has cached."""
        for rank in range(self.router.num_ranks):
            self._ask(client, rank)

    def _ask_unknown(self, client: DPLBAsyncMPClient) -> None:
        """Ask the ranks again whose caches are not known: a question may have been lost."""
        for rank in range(self.router.num_ranks):
            if not self.router.index.is_known(rank):
                self._ask(client, rank)

    def _ask(self, client: DPLBAsyncMPClient, rank: int) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # only tests and start-up: the next request asks
            return
        if self._asking[rank].may_ask():
            task = loop.create_task(self._ask_rank(client, rank))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask_rank(self, client: DPLBAsyncMPClient, rank: int) -> None:
        asking, engine = self._asking[rank], client.core_engines[rank]
        try:
            tells = await client._call_utility_async(
                TELL_METHOD, client.client_index, engine=engine
            )
        except Exception as error:  # vLLM raises a bare one for all that went wrong there
            _warn_once(asking, "data-parallel rank %d cannot tell its cache yet: %s", rank, error)
            return
        if not tells:
            asking.is_refused = True
            _warn_once(
                asking,
                "VLLM_ASCEND_DP_ROUTING=cache: data-parallel rank %d does not tell what it has "
                "cached, so it is chosen by its load alone. It needs the same variable, prefix "
                "caching, and VLLM_ASCEND_PREFIX_CACHE_PROFILE or another switch of it",
                rank,
            )


def _num_tokens(request: EngineCoreRequest) -> int:
    return len(request.prompt_token_ids or ())


def _warn_once(asking: Asking, message: str, *arguments: object) -> None:
    if not asking.has_warned:
        asking.has_warned = True
        _logger.warning(message, *arguments)


def take_news(router: Router, rank: int, outputs: EngineCoreOutputs) -> bool:
    """Let a router hear a rank's outputs; return whether the rank must tell all anew."""
    for output in outputs.outputs:
        if output.request_id in router.sent:
            stats = output.prefill_stats
            hit = None if stats is None else stats.num_local_cached_tokens
            router.first_token(output.request_id, hit)
    for request_id in outputs.finished_requests or ():
        router.finished(request_id)
    message: Any = getattr(outputs.scheduler_stats, "ascend_cache_news", None)
    if message is None:
        return False
    outputs.scheduler_stats = None  # made for the message alone
    try:
        return router.hear(rank, decode_news(message))
    except (MsgspecError, ValueError):
        router.index.forget(rank)
        return True


def start_routing(client: DPAsyncMPClient) -> FrontEnd | None:
    """Return what a client chooses by; ``None``: it has nothing to choose, which is said."""
    if not isinstance(client, DPLBAsyncMPClient):
        _logger.warning(
            "VLLM_ASCEND_DP_ROUTING=cache has no effect with --data-parallel-external-lb: the "
            "balancer outside chooses the rank. docs/kv-events.md tells how it can do so by cache"
        )
        return None
    _logger.info(
        "data-parallel ranks are chosen by what they have cached (VLLM_ASCEND_DP_ROUTING=cache)"
    )
    front_end = FrontEnd(client)
    with contextlib.suppress(RuntimeError):  # no event loop: ranks tell by themselves, later
        asyncio.get_running_loop()
        front_end.ask_all(client)
    return front_end
