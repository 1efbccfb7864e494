# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/engine/core_client.py``: the front end chooses data-parallel ranks by their caches."""

from __future__ import annotations

from collections.abc import Callable

from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.core_client import DPAsyncMPClient, DPLBAsyncMPClient

from vllm_ascend.dp_routing.client import start_routing
from vllm_ascend.patch.features import DP_ROUTING
from vllm_ascend.patch.table import Patch, changes
from vllm_ascend.prefix_cache_config import load_config

_CLIENT = "vllm.v1.engine.core_client:DPAsyncMPClient"
_BALANCER = "vllm.v1.engine.core_client:DPLBAsyncMPClient"


@changes(f"{_CLIENT}.__init__", DP_ROUTING)
def wrap_init(self: DPAsyncMPClient, *args, original: Callable, **kwargs) -> None:
    """Only here is the number of ranks known."""
    self.ascend_routing = None  # vLLM chooses
    original(self, *args, **kwargs)
    if load_config().dp_routing:
        self.ascend_routing = start_routing(self)


@changes(f"{_CLIENT}.add_request_async", DP_ROUTING)
async def wrap_add_request_async(
    self: DPAsyncMPClient, request: EngineCoreRequest, *, original: Callable
) -> None:
    """Long prompts are hashed beside the event loop."""
    routing = self.ascend_routing
    if routing is None or await routing.hash_prompt(request):
        await original(self, request)


@changes(f"{_BALANCER}.get_core_engine_for_request", DP_ROUTING)
def wrap_get_core_engine_for_request(
    self: DPLBAsyncMPClient, request: EngineCoreRequest, *, original: Callable
) -> bytes:
    """vLLM's balancer counts requests, not what a rank has cached."""
    routing = self.ascend_routing
    if routing is None:
        return original(self, request)
    return routing.choose(self, request, original)


@changes(f"{_BALANCER}.process_engine_outputs", DP_ROUTING)
async def wrap_process_engine_outputs(
    self: DPLBAsyncMPClient, outputs: EngineCoreOutputs, *, original: Callable
) -> None:
    """It sees the outputs of all ranks first, and in order."""
    if self.ascend_routing is not None:
        self.ascend_routing.hear(self, outputs)
    await original(self, outputs)


@changes(f"{_BALANCER}.abort_requests_async", DP_ROUTING)
async def wrap_abort_requests_async(
    self: DPLBAsyncMPClient, request_ids: list[str], *, original: Callable
) -> None:
    """A request may be aborted while its prompt is hashed."""
    if self.ascend_routing is not None:
        self.ascend_routing.abort(request_ids)
    await original(self, request_ids)


PATCHES: tuple[Patch, ...] = (
    wrap_init,
    wrap_add_request_async,
    wrap_get_core_engine_for_request,
    wrap_process_engine_outputs,
    wrap_abort_requests_async,
)
