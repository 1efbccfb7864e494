# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout on the CPU (see real_runs): engines that share AscendStore's pool.

The pool is a folder. Rows that are loaded carry the tags of those that were stored: a page in a
wrong block, of other tokens or left out is an error where it is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.upstream.npu_reference import file_store
from tests.upstream.npu_reference.check_planted_faults import wrap
from tests.upstream.npu_reference.check_whole_runs import BEST
from tests.upstream.npu_reference.engine import Engine
from tests.upstream.npu_reference.file_store import FileStore
from tests.upstream.npu_reference.instances import (
    Instance,
    empty_cache,
    instances,
    num_read,
    without_cache,
)
from tests.upstream.npu_reference.tags import TagError

# With 32 rows hits in the pool end at multiples of 128 * 32 tokens.
ROWS, WHOLE_BLOCKS = 32, 4096
SETTINGS = {"rows": ROWS, "max_model_len": 8704, "num_gpu_blocks_override": 6000}
TEXT = [(index * 37 + 11) % 1000 + 3 for index in range(8600)]
STORED = TEXT[:4200]
# Of compressed and of windowed groups of the tiny model; C128's state is empty at a boundary.
GROUPS, GROUP_OF_EMPTY_STATE = range(7), 6


def engine_of_pool(
    folder: Path,
    name: str,
    fault: Callable[[], None] | None = None,
    num_drafts: int = 0,
    **extra: Any,
) -> Engine:
    """Make an engine that shares the pool of a folder.

    Args:
        folder: Where the pool is.
        name: The engine's.
        fault: Is planted first.
        num_drafts: Of MTP.
        extra: AscendStore's settings.
    """
    from vllm.config import KVTransferConfig

    os.environ["VLLM_RPC_BASE_PATH"] = str(folder)
    os.environ["PYTHONHASHSEED"] = "0"  # engines of a pool have one seed
    file_store.stand_in(folder / "pool")
    if fault is not None:
        fault()
    extra |= {"backend": file_store.BACKEND, "lookup_rpc_port": name}
    transfer = KVTransferConfig(
        kv_connector="AscendStoreConnector", kv_role="kv_both", kv_connector_extra_config=extra
    )
    return Engine(
        switches=BEST,
        num_drafts=num_drafts,
        kv_transfer_config=transfer,
        disable_hybrid_kv_cache_manager=False,
        **SETTINGS,
    )


def num_loaded(engine: Engine) -> int:
    """Return how many pages the engine has loaded."""
    return len(FileStore.loaded)


def forgets(instance: Instance) -> bool:
    """Empty an instance's prefix cache; return whether every block was free."""
    instance.ask([[1, 2, 3]], num_tokens=1)  # what was stored is released by the next step
    return instance.call(empty_cache)


@pytest.mark.parametrize(("num_drafts", "load_async"), [(0, False), (0, True), (2, False)])
def test_one_engine_loads_what_another_stored(tmp_path, num_drafts, load_async):
    prompts = [STORED, TEXT[:WHOLE_BLOCKS], [*TEXT[:4500], 7, 8, 9]]
    expected = without_cache(prompts, **SETTINGS)
    how = {"num_drafts": num_drafts, "load_async": load_async}
    makers = [lambda name=name: engine_of_pool(tmp_path, name, **how) for name in "ab"]
    with instances(*makers) as (first, second):
        (stored,) = first.ask([STORED])
        assert (stored.tokens, stored.num_cached) == (expected[0], 0)
        # Of a hit that ends with the prompt, or beside drafts, the last token is computed.
        hits = [WHOLE_BLOCKS - bool(num_drafts), WHOLE_BLOCKS - 1]
        for prompt, tokens, hit in zip(prompts, expected, [*hits, hits[0]], strict=True):
            assert forgets(second)
            before = second.call(num_loaded)
            (answer,) = second.ask([prompt])
            assert (answer.tokens, answer.num_cached) == (tokens, hit)
            assert second.call(num_loaded) > before
        assert forgets(second)
        together = second.ask(prompts)
        assert [answer.tokens for answer in together] == expected
        assert all(answer.num_cached >= WHOLE_BLOCKS - 1 for answer in together)
        assert second.call(num_read) > 10_000


def test_engines_that_take_turns(tmp_path):
    """What an engine has itself ends inside a block; the pool has more of the prompt."""
    prompts = [TEXT[:length] for length in (4000, 4300, 4600, 8300, 8500)]
    expected = without_cache(prompts, **SETTINGS)
    hits, loaded = [], []
    makers = [lambda name=name: engine_of_pool(tmp_path, name) for name in "ab"]
    with instances(*makers) as engines:
        for turn, prompt in enumerate(prompts):
            engine = engines[turn % 2]
            before = engine.call(num_loaded)
            (answer,) = engine.ask([prompt])
            assert answer.tokens == expected[turn]
            hits.append(answer.num_cached)
            loaded.append(engine.call(num_loaded) > before)
    assert loaded == [False, False, True, False, True]
    assert hits == [0, 0, WHOLE_BLOCKS, 4224, 2 * WHOLE_BLOCKS]


# Planted faults


def group_of(key: str) -> int:
    """Return the group whose page a key names."""
    return int(key.partition("@group:")[2].partition("@")[0])


def leave_out(group: int) -> None:
    """Let no page of a group be loaded."""

    def get(original, store, *pages):
        kept = [page for page in zip(*pages, strict=True) if group_of(page[0]) != group]
        return original(store, *zip(*kept, strict=True))

    wrap(FileStore, "get", get)


def swap(operation: str) -> None:
    """Let pages of a group be put or got under the keys of one another."""

    def swapped(original, store, keys, *places):
        turned = [
            key
            for group in dict.fromkeys(map(group_of, keys))
            for same in [[key for key in keys if group_of(key) == group]]
            for key in [*same[1:], same[0]]
        ]
        return original(store, turned, *places)

    wrap(FileStore, operation, swapped)


def load_late() -> None:
    """Let pages be loaded when the step has been computed."""
    from vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store.pool_worker import (  # type: ignore[import-not-found]
        KVPoolWorker,
    )

    load = KVPoolWorker.start_load_kv
    wrap(KVPoolWorker, "start_load_kv", lambda *_: None)

    def load_and_save(original, worker, metadata):
        load(worker, metadata)
        original(worker, metadata)

    wrap(KVPoolWorker, "wait_for_save", load_and_save)


def promise_all() -> None:
    """Let the look-up promise all pages, without asking whether they are there."""
    from vllm_ascend.patch.upstream import patch_ascend_store

    def all_tokens(worker, num_tokens, block_hashes):
        step = worker.cache_transfer_granularity
        return num_tokens // step * step

    patch_ascend_store.stored_tokens = all_tokens


def store(folder: Path, fault: Callable[[], None] | None = None) -> list[int]:
    """Let an engine that ends then store a prompt, and return its answer."""
    with instances(lambda: engine_of_pool(folder, "a", fault)) as (engine,):
        return engine.ask([STORED])[0].tokens


def load(folder: Path, fault: Callable[[], None] | None = None) -> list[int]:
    """Return the answer of a new engine to the stored prompt."""
    with instances(lambda: engine_of_pool(folder, "b", fault)) as (engine,):
        return engine.ask([STORED])[0].tokens


def test_pages_that_are_not_loaded(tmp_path):
    """Of every group that is read behind a boundary."""
    right = store(tmp_path)
    for group in GROUPS:
        if group == GROUP_OF_EMPTY_STATE:
            assert load(tmp_path, lambda: leave_out(GROUP_OF_EMPTY_STATE)) == right
            continue
        with pytest.raises(TagError, match=rf"read .*, group {group},"):
            load(tmp_path, lambda group=group: leave_out(group))


@pytest.mark.parametrize("fault", [lambda: swap("get"), load_late], ids=["swapped", "late"])
def test_pages_that_are_loaded_wrong(tmp_path, fault):
    store(tmp_path)
    with pytest.raises(TagError, match="read"):
        load(tmp_path, fault)


def test_pages_that_are_stored_wrong(tmp_path):
    store(tmp_path, lambda: swap("put"))
    with pytest.raises(TagError, match="read another prefix"):
        load(tmp_path)


def test_a_page_that_is_gone_from_the_pool(tmp_path):
    """The look-up asks for all that is read; upstream's asked for the pages of windows alone."""
    right = store(tmp_path)
    (gone, *_) = (key for key in file_store.keys_in(tmp_path / "pool") if group_of(key) == 0)
    FileStore.folder = tmp_path / "pool"
    FileStore.path(gone).unlink()
    assert load(tmp_path) == right  # it computes the page, and stores it again
    FileStore.path(gone).unlink()
    with pytest.raises(TagError, match=r"read .*, group 0,"):
        load(tmp_path, promise_all)
