# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/engine/core_client.py``: the front end chooses data-parallel ranks by their caches."""

from __future__ import annotations

from collections.abc import Callable

from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.core_client import DPAsyncMPClient, DPLBAsyncMPClient

from vllm_ascend.dp_routing.client import start_routing
from vllm_ascend.patch.features import DP_ROUTING
from vllm_ascend.patch.table import Add, Patch, changes
from vllm_ascend.prefix_cache_config import load_config

_CLIENT = "vllm.v1.engine.core_client:DPAsyncMPClient"
_BALANCER = "vllm.v1.engine.core_client:DPLBAsyncMPClient"


@changes(f"{_CLIENT}.__init__", DP_ROUTING)
def wrap_init(original: Callable) -> Callable:
    """Only here is the number of ranks known."""

    def __init__(self: DPAsyncMPClient, *args, **kwargs) -> None:
        original(self, *args, **kwargs)
        if load_config().dp_routing:
            self.ascend_routing = start_routing(self)

    return __init__


@changes(f"{_CLIENT}.add_request_async", DP_ROUTING)
def wrap_add_request_async(original: Callable) -> Callable:
    """Long prompts are hashed beside the event loop."""

    async def add_request_async(self: DPAsyncMPClient, request: EngineCoreRequest) -> None:
        routing = self.ascend_routing
        if routing is None or await routing.hash_prompt(request):
            await original(self, request)

    return add_request_async


@changes(f"{_BALANCER}.get_core_engine_for_request", DP_ROUTING)
def wrap_get_core_engine_for_request(original: Callable) -> Callable:
    """vLLM's balancer counts requests, not what a rank has cached."""

    def get_core_engine_for_request(self: DPLBAsyncMPClient, request: EngineCoreRequest) -> bytes:
        routing = self.ascend_routing
        if routing is None:
            return original(self, request)
        return routing.choose(self, request, original)

    return get_core_engine_for_request


@changes(f"{_BALANCER}.process_engine_outputs", DP_ROUTING)
def wrap_process_engine_outputs(original: Callable) -> Callable:
    """It sees the outputs of all ranks first, and in order."""

    async def process_engine_outputs(self: DPLBAsyncMPClient, outputs: EngineCoreOutputs) -> None:
        if self.ascend_routing is not None:
            self.ascend_routing.hear(self, outputs)
        await original(self, outputs)

    return process_engine_outputs


@changes(f"{_BALANCER}.abort_requests_async", DP_ROUTING)
def wrap_abort_requests_async(original: Callable) -> Callable:
    """A request may be aborted while its prompt is hashed."""

    async def abort_requests_async(self: DPLBAsyncMPClient, request_ids: list[str]) -> None:
        if self.ascend_routing is not None:
            self.ascend_routing.abort(request_ids)
        await original(self, request_ids)

    return abort_requests_async


PATCHES: tuple[Patch, ...] = (
    Add(
        target=f"{_CLIENT}.ascend_routing",
        replacement=None,
        **DP_ROUTING,
        why="Chooses the rank; None: vLLM does.",
    ),
    wrap_init,
    wrap_add_request_async,
    wrap_get_core_engine_for_request,
    wrap_process_engine_outputs,
    wrap_abort_requests_async,
)
