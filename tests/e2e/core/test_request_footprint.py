# SPDX-License-Identifier: Apache-2.0
"""What a request is promised to hold at most: it is enough, and it is not much more than needed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.e2e.core import layouts
from tests.e2e.core.configurations import DSV4, PARTIAL, PIN, RETENTION, SPARSE
from vllm_ascend.dry_run.layouts import KVLayout, dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler, make_request
from vllm_ascend.dry_run.worker import SamplingWorker
from vllm_ascend_evaluation.oracle import check_integrity

BEST = {"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
# layout, switches, tokens of a step
CELLS: dict[str, tuple[Callable[[], KVLayout], dict[str, str], int]] = {
    "a3-128": (dsv4_flash_a3, {DSV4: "1", **BEST}, 2048),
    "a3-32": (lambda: dsv4_flash_a3(32), {DSV4: "1", **BEST}, 2048),
    "a3-dense": (dsv4_flash_a3, {DSV4: "1", **BEST, SPARSE: "0"}, 2048),
    "rows": (layouts.dsv4_rows_tiny, {DSV4: "1", **BEST}, 96),
    "rows-every": (layouts.dsv4_rows_tiny, {DSV4: "1", SPARSE: "1", PARTIAL: "1"}, 96),
    "rows-pinned": (layouts.dsv4_rows_tiny, {DSV4: "1", SPARSE: "1", PIN: "1"}, 96),
    "rows-dense": (layouts.dsv4_rows_tiny, {DSV4: "1", RETENTION: "0"}, 96),
    "gpu": (layouts.dsv4_stock_tiny, {**BEST}, 96),
    "gemma": (layouts.gemma_like, {**BEST}, 64),
}
MODES = {
    "plain": {},
    "mtp3": {"num_speculative_tokens": 3},
    "async-mtp1": {"async_scheduling": True, "num_speculative_tokens": 1},
}


def build(
    cell: str, max_model_len: int, num_blocks: int = 5000, mode: str = "plain", step_tokens: int = 0
):
    """Return a scheduler with room for one request at a time; variables are set already."""
    layout, _, usual = CELLS[cell]
    options = SchedulerOptions(
        num_blocks=num_blocks,
        max_num_seqs=1,
        max_num_batched_tokens=step_tokens or usual,
        max_model_len=max_model_len,
        **MODES[mode],
    )
    return build_scheduler(layout(), options)


def promised(scheduler) -> int:
    footprint = scheduler.kv_cache_manager.coordinator.request_footprint
    return sum(footprint.blocks(group_id) for group_id in range(len(footprint.groups)))


def peak(scheduler, prompt: Sequence[int], chunks: Sequence[int], name: str, outputs: int) -> int:
    """Run one request, cut into steps of these sizes, again and again; return the blocks it held.

    Steps may be as small as a loaded engine's, where others take most of the tokens.
    """
    worker, coordinator = SamplingWorker(scheduler), scheduler.kv_cache_manager.coordinator
    pool = scheduler.kv_cache_manager.block_pool
    scheduler.add_request(make_request(scheduler, name, list(prompt), outputs))
    most = step = 0
    in_flight = []
    while scheduler.has_unfinished_requests():
        scheduler.max_num_scheduled_tokens = chunks[step % len(chunks)]
        output = scheduler.schedule()
        step += 1
        assert not output.preempted_req_ids
        assert output.num_scheduled_tokens or in_flight, "it cannot go on"
        used = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
        most = max(most, used - coordinator.sparse_state.num_spares)
        in_flight.append((output, worker.execute(output)))
        if len(in_flight) > scheduler.vllm_config.scheduler_config.async_scheduling:
            scheduler.update_from_output(*in_flight.pop(0))
            drafts = worker.take_draft_token_ids()
            if drafts is not None:
                scheduler.update_draft_token_ids(drafts)
    while in_flight:
        scheduler.update_from_output(*in_flight.pop(0))
    check_integrity(scheduler.kv_cache_manager)
    scheduler.schedule()
    return most


@pytest.mark.parametrize("cell", CELLS)
@given(data=st.data())
@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_pool_of_what_is_promised_is_enough(switch: Callable, cell: str, data) -> None:
    """For every length, cut in any way, whatever it hits: nothing has to be preempted."""
    _, switches, step_tokens = CELLS[cell]
    switch(switches)
    mode = data.draw(st.sampled_from(sorted(MODES)))
    length = data.draw(st.integers(10, 5 * step_tokens))
    outputs = data.draw(st.integers(1, min(40, length - 1)))
    chunk = st.integers(8, step_tokens) | st.sampled_from([8, step_tokens])
    need = promised(build(cell, length, mode=mode))
    scheduler = build(cell, length, num_blocks=need + 1, mode=mode)
    rng = random.Random(length)
    prompt = [rng.randrange(1000) for _ in range(length - outputs)]
    for name in "abc":  # the others leave what is cached somewhere
        chunks = data.draw(st.lists(chunk, min_size=1, max_size=6))
        held = peak(scheduler, prompt, chunks, name, outputs)
        assert held <= need
        cut = data.draw(st.integers(0, len(prompt) - 1))
        prompt = prompt[:cut] + [rng.randrange(1000) for _ in prompt[cut:]]


@pytest.mark.parametrize("cell", ["a3-128", "a3-32", "a3-dense"])
@pytest.mark.parametrize("length", [20_096, 135_040])
def test_no_more_is_promised_than_is_reached(switch: Callable, cell: str, length: int) -> None:
    """A step of all tokens behind small ones, where windows lie across blocks."""
    step_tokens = 8192
    switch(CELLS[cell][1])
    scheduler = build(cell, length, step_tokens=step_tokens)
    prompt = random.Random(0).choices(range(1000), k=length - 1)
    first, *small = length - 1 - step_tokens - 130, *[1] * 130
    chunks = [*[step_tokens] * (first // step_tokens), first % step_tokens, *small, step_tokens]
    reached = peak(scheduler, prompt, chunks, "a", 1)
    assert reached <= promised(scheduler) <= 1.1 * reached
