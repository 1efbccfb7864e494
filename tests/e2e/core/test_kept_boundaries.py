# SPDX-License-Identifier: Apache-2.0
"""What must be hit: expectations from arithmetic alone, independent of masks and managers.

The oracle proves that no hit is wrong. A cache that never hits would pass it, so these tests say
how much has to be found again, and for how long.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from tests.e2e.core import layouts
from tests.e2e.core.configurations import DSV4, PARTIAL, RETENTION, SPARSE
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.engine import Engine
from tests.release_marks import WHERE_BLOCKS_COUNT_ROWS
from vllm_ascend.core.layout.groups import Blocks
from vllm_ascend.core.policy.ranks import Rank
from vllm_ascend.dry_run.layouts import KVLayout
from vllm_ascend.dry_run.scheduler import SchedulerOptions, make_request
from vllm_ascend_evaluation.oracle import OracleOptions

# layout, alignment in tokens, environment
LAYOUTS = {
    "gemma": (lambda k: layouts.gemma_like(4, 9), 4, {}),
    "dsv4-stock": (lambda k: layouts.dsv4_stock_tiny(mtp=k > 0), 32, {}),
    "dsv4-rows": (lambda k: layouts.dsv4_rows_tiny(mtp=k > 0), 64, {DSV4: "1"}),
    "dsv4-stock-partial": (
        # Its scheduler sees ratio 4 alone; at 8 tokens the other compressor's window is open.
        lambda k: layouts.dsv4_stock_tiny(mtp=k > 0),
        8,
        {PARTIAL: "1"},
    ),
    "dsv4-rows-partial": (
        lambda k: layouts.dsv4_rows_tiny(mtp=k > 0),
        16,
        {DSV4: "1", PARTIAL: "1"},
    ),
    "dsv4-rows-sparse": (
        lambda k: layouts.dsv4_rows_tiny(mtp=k > 0),
        16,
        {DSV4: "1", PARTIAL: "1", SPARSE: "1"},
    ),
}


def random_prompt(seed: int, num_tokens: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1000) for _ in range(num_tokens)]


class Bench:
    """An engine that serves one request at a time, if not told otherwise."""

    def __init__(
        self,
        make_engine: MakeEngine,
        layout: str,
        retention: str | None,
        *,
        num_drafts: int = 0,
        max_num_batched_tokens: int = 1000,
        num_blocks: int = 1500,
        max_num_seqs: int = 1,
        switches: Mapping[str, str] | None = None,
    ) -> None:
        make, self.alignment, environment = LAYOUTS[layout]
        options = SchedulerOptions(
            num_blocks=num_blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=1000,
            num_speculative_tokens=num_drafts,
        )

        def build() -> KVLayout:
            return make(num_drafts)

        environment = {**environment, **(switches or {})}
        if retention is not None:
            environment[RETENTION] = retention
        self.engine: Engine = make_engine(
            build, options, OracleOptions(strict_state=False), environment=environment
        )
        self.count = 0

    @property
    def hash_block_size(self) -> int:
        """Tokens per hash: what a draft layer must see behind a boundary."""
        return self.engine.manager.block_pool.hash_block_size

    def hit(self, prompt: list[int], max_tokens: int = 2) -> int:
        """Serve a prompt; return its hit in tokens."""
        self.count += 1
        request_id = f"r{self.count}"
        self.engine.add(request_id, prompt, max_tokens)
        self.engine.run()
        self.engine.check()
        return self.engine.hits[request_id]

    def is_cached(self, prompt: list[int], boundary: int) -> bool:
        """Whether a request that left the prompt at a boundary would hit there."""
        request = make_request(self.engine.scheduler, "probe", [*prompt[:boundary], 5000], 1)
        coordinator = self.engine.manager.coordinator
        return coordinator.find_longest_cache_hit(request.block_hashes, boundary)[1] == boundary

    def blocks_of_hit(self, prompt: list[int], boundary: int) -> Blocks:
        """Return what a request takes that leaves the prompt at a boundary, and hits there."""
        request = make_request(self.engine.scheduler, "probe", [*prompt[:boundary], 5000], 1)
        coordinator = self.engine.manager.coordinator
        # vLLM 0.30.0 tells a third thing.
        blocks, hit = coordinator.find_longest_cache_hit(request.block_hashes, boundary)[:2]
        assert hit == boundary
        return blocks

    def give_up_tails(self) -> None:
        """Give up all tails that nothing keeps."""
        pool = self.engine.manager.block_pool
        groups = self.engine.manager.coordinator.groups.windowed
        suffixes = tuple(group.suffix for group in groups)
        for block in pool.blocks:
            if (block.block_hash or b"").endswith(suffixes) and pool.rank(block) < Rank.KEPT:
                pool.give_up(block)

    def fresh(self) -> None:
        """Forget everything cached."""
        assert self.engine.reset()


@pytest.mark.parametrize("num_drafts", [0, 2], ids=["plain", "mtp"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_replayed_prompt_hits_its_replay_boundary(
    layout: str, num_drafts: int, make_engine: MakeEngine
) -> None:
    """However long the prompt is, and wherever its prefill was cut into chunks.

    Chunk sizes put the boundary inside a chunk, at the end of one, and just behind one.
    """
    for chunk in (1000, 64, 48, 33):
        bench = Bench(make_engine, layout, "0", num_drafts=num_drafts, max_num_batched_tokens=chunk)
        unit = bench.alignment
        behind = bench.hash_block_size if num_drafts else 1
        lengths = [m * unit + extra for m in (1, 2, 3) for extra in (-1, 0, 1, behind - 1, behind)]
        for seed, length in enumerate(sorted({n for n in lengths if n > 0})):
            prompt = random_prompt(seed, length)
            assert bench.hit(prompt) == 0
            expected = max(length - behind, 0) // unit * unit
            assert bench.hit(prompt) == expected, (chunk, length)
            bench.fresh()


@WHERE_BLOCKS_COUNT_ROWS
@pytest.mark.parametrize(
    ("layout", "num_drafts"), [*((name, 0) for name in LAYOUTS), ("dsv4-rows", 2)]
)
def test_a_branch_at_any_offset_hits_the_last_boundary_before_it(
    layout: str, num_drafts: int, make_engine: MakeEngine
) -> None:
    """With everything kept. A draft layer has to see the same tokens behind the boundary, too."""
    bench = Bench(make_engine, layout, None, num_drafts=num_drafts)
    unit = bench.alignment
    behind = bench.hash_block_size if num_drafts else 0
    for cut in range(2 * unit + behind + 2):
        prompt = random_prompt(cut, 3 * unit)
        bench.hit(prompt)
        branch = [token + 1000 for token in random_prompt(cut + 1, unit)]
        expected = max(cut - behind, 0) // unit * unit
        assert bench.hit(prompt[:cut] + branch) == expected, cut
        bench.fresh()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_interval_boundaries_are_kept_too(layout: str, make_engine: MakeEngine) -> None:
    """Requests that leave a prompt anywhere hit the last multiple of the interval before that."""
    unit = LAYOUTS[layout][1]
    interval = 4 * unit
    bench = Bench(make_engine, layout, str(interval), max_num_batched_tokens=3 * unit)
    for cut in range(unit - 1, 13 * unit, unit):
        prompt = random_prompt(cut, 13 * unit + 1)
        bench.hit(prompt)
        expected = cut // interval * interval
        assert bench.hit(prompt[:cut] + random_prompt(cut + 1, unit)) == expected, cut
        bench.fresh()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_interval_zero_keeps_the_end_of_the_prompt_only(
    layout: str, make_engine: MakeEngine
) -> None:
    """The next turn of a chat goes on behind the prompt; a branch inside it finds nothing."""
    bench = Bench(make_engine, layout, "0")
    unit = bench.alignment
    prompt = random_prompt(5, 5 * unit + 3)
    bench.hit(prompt)
    assert bench.hit(prompt + random_prompt(6, unit)) == 5 * unit
    bench.fresh()
    bench.hit(prompt)
    assert bench.hit(prompt[: 3 * unit + 1] + random_prompt(7, unit)) == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_boundary_survives_preemption(layout: str, make_engine: MakeEngine) -> None:
    """A request that was preempted, and computed again, is replayed as far as any other."""
    bench = Bench(make_engine, layout, "0", max_num_batched_tokens=LAYOUTS[layout][1] // 2)
    unit = bench.alignment
    prompt = random_prompt(9, 3 * unit + 1)
    bench.engine.add("victim", prompt, 3)
    for _ in range(3):
        bench.engine.step()
    assert bench.engine.reset(busy=True)
    assert bench.engine.requests["victim"].num_preemptions == 1
    bench.engine.run()
    assert bench.hit(prompt) == 3 * unit


def check_churn(
    layout: str, make_engine: MakeEngine, switches: Mapping[str, str] | None = None
) -> None:
    """Blocks that a window leaves behind are reused before anything that is cached.

    The pool holds what is cached and what runs, with little to spare; the windows of the long
    requests pass several times the pool's size through the free queue.

    Args:
        switches: set in addition where it is tight, but not where its size is measured.
    """
    unit = LAYOUTS[layout][1]
    chunk = unit // 2 if unit > 8 else 8
    wide = Bench(make_engine, layout, "0", max_num_batched_tokens=chunk)
    kept, churn = random_prompt(1, 2 * unit + 1), random_prompt(2, 700)
    wide.hit(kept)
    wide.engine.add("long", churn[:300], 300)
    peak = 0
    while wide.engine.step():
        pool = wide.engine.manager.block_pool
        peak = max(peak, pool.num_gpu_blocks - pool.get_num_free_blocks())
    hashed = sum(b.block_hash is not None for b in pool.blocks)
    narrow = Bench(
        make_engine,
        layout,
        "0",
        max_num_batched_tokens=chunk,
        # What the long request holds at most, and every block that anything may hit.
        num_blocks=peak + hashed + 2,
        switches=switches,
    )
    narrow.hit(kept)
    narrow.hit(churn[:300], max_tokens=300)
    assert narrow.hit(kept) == 2 * unit, "a kept prefix was evicted"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_window_churn_does_not_evict_kept_prefixes(layout: str, make_engine: MakeEngine) -> None:
    check_churn(layout, make_engine)
