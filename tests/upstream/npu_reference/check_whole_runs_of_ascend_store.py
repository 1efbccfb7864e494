# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout on the CPU (see real_runs): engines that share AscendStore's pool.

The pool is a folder. Rows that are loaded carry the tags of those that were stored: a page in a
wrong block, of other tokens or left out is an error where it is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
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
STORED_BEHIND = "stored-behind-lost-pages"
# Of compressed and of windowed groups of the tiny model; C128's state is empty at a boundary.
GROUPS, GROUP_OF_EMPTY_STATE = range(7), 6


def engine_of_pool(
    folder: Path,
    name: str,
    fault: Callable[[], None] | None = None,
    num_drafts: int = 0,
    num_step_tokens: int = 512,
    **extra: Any,
) -> Engine:
    """Make an engine that shares the pool of a folder.

    Args:
        folder: Where the pool is.
        name: The engine's.
        fault: Is planted first.
        num_drafts: Of MTP.
        num_step_tokens: At most so many tokens in a step.
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
        kv_connector="AscendStoreConnector",
        kv_role="kv_both",
        kv_connector_extra_config=extra,
        kv_load_failure_policy="recompute",
    )
    return Engine(
        switches=BEST,
        num_drafts=num_drafts,
        kv_transfer_config=transfer,
        disable_hybrid_kv_cache_manager=False,
        max_num_batched_tokens=num_step_tokens,
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
    from vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store.pool_worker import KVPoolWorker

    def all_tokens(original, worker, num_tokens, *_, **__):
        step = worker.cache_transfer_granularity
        return num_tokens // step * step

    wrap(KVPoolWorker, "lookup_scheduler", all_tokens)


def promise_and_miss_nothing() -> None:
    """The same, and take all of them for loaded."""
    from vllm_ascend.kv_transfer.store_loads import CheckedStore

    promise_all()
    wrap(CheckedStore, "_missing", lambda original, *pages: original(*pages) and ())


def lose_pages() -> None:
    """Let pages of two groups be gone when they are to be loaded, once."""
    lost: list[int] = []

    def get(original, store, keys, *places):
        for group in {0, 2}.difference(lost):
            FileStore.path(next(key for key in keys if group_of(key) == group)).unlink()
            lost.append(group)
        return original(store, keys, *places)

    wrap(FileStore, "get", get)


def lose_pages_unsaid() -> None:
    """The same, of a client that does not say which pages it has loaded, as 0.20.2rc1's."""
    lose_pages()
    wrap(FileStore, "get", lambda original, *pages: original(*pages) and None)


def lose_pages_in_the_step() -> None:
    """The same; what the step reads in their place is not checked, since its answer is dropped.

    If it stores anything, there is a file beside the pool.
    """
    from tests.upstream.npu_reference.tags import Memory
    from vllm_ascend.kv_transfer.store_loads import CheckedStore

    lost: list[int] = []

    def missing(original, *pages):
        lost.extend(found := original(*pages))
        return found

    def take_lost(original, store):
        lost.clear()
        return original(store)

    def put(original, store, *pages):
        if lost:
            (FileStore.folder.parent / STORED_BEHIND).touch()
        return original(store, *pages)

    lose_pages()
    wrap(FileStore, "put", put)
    wrap(CheckedStore, "_missing", missing)
    wrap(CheckedStore, "take_lost", take_lost)
    wrap(Memory, "read", lambda original, *read, **how: lost or original(*read, **how))


def store_behind_lost_pages() -> None:
    """The same, and store what the step leaves all the same."""
    from vllm_ascend.kv_transfer.store_loads import CheckedStore

    lose_pages_in_the_step()
    CheckedStore.lost = frozenset()  # type: ignore[assignment,method-assign]


def store_null_blocks() -> None:
    """Let blocks that windows have left be stored as if they were the request's."""
    from vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store.config_data import (  # type: ignore[import-not-found]
        ChunkedTokenDatabase,
    )

    # Its worker says of every database whether there are null blocks.
    ChunkedTokenDatabase.has_null_blocks = property(lambda _: False, lambda *_: None)


def store(folder: Path, fault: Callable[[], None] | None = None) -> list[int]:
    """Let an engine that ends then store a prompt, and return its answer."""
    with instances(lambda: engine_of_pool(folder, "a", fault)) as (engine,):
        return engine.ask([STORED])[0].tokens


def store_what_was_lost(folder: Path, fault: Callable[[], None] | None = None) -> None:
    """Let an engine store a prompt that it has itself, and that is gone from the pool.

    Of the prompt's first boundary in the pool its windows have left the tail by then.
    """
    prompt = TEXT[: 2 * WHOLE_BLOCKS + 100]
    with instances(lambda: engine_of_pool(folder, "a", fault)) as (engine,):
        engine.ask([prompt])
        for page in (folder / "pool").iterdir():
            page.unlink()
        (again,) = engine.ask([prompt])
    assert again.num_cached >= 2 * WHOLE_BLOCKS
    assert file_store.keys_in(folder / "pool")


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
    """The look-up asks for all that is read; 0.20.2rc1's own, for the pages of windows alone."""
    right = store(tmp_path)
    (gone, *_) = (key for key in file_store.keys_in(tmp_path / "pool") if group_of(key) == 0)
    FileStore.folder = tmp_path / "pool"
    FileStore.path(gone).unlink()
    assert load(tmp_path) == right  # it computes the page, and stores it again
    FileStore.path(gone).unlink()
    with pytest.raises(TagError, match=r"read .*, group 0,"):
        load(tmp_path, promise_and_miss_nothing)


@pytest.mark.parametrize(
    ("client", "load_async"),
    [(lose_pages, True), (lose_pages_unsaid, True), (lose_pages_in_the_step, False)],
)
def test_pages_that_vanish_before_they_are_loaded(tmp_path, client, load_async):
    """The prompt is computed then, and stored as it is computed."""
    right = store(tmp_path)
    makers = [lambda: engine_of_pool(tmp_path, "b", client, load_async=load_async)]
    with instances(*makers) as (engine,):
        (answer,) = engine.ask([STORED])
        assert answer.tokens == right
        assert forgets(engine)
    assert load(tmp_path) == right


@pytest.mark.parametrize("fault", [lose_pages_in_the_step, store_behind_lost_pages])
def test_a_step_that_has_lost_pages_stores_nothing(tmp_path, fault):
    """What it computes behind them is wrong, and whole pages of it here."""
    store(tmp_path)
    with (
        instances(lambda: engine_of_pool(tmp_path, "b", fault, num_step_tokens=4200)) as (engine,),
        suppress(TagError),  # 0.20.2rc1 stores what it did not load as well, and finds it there
    ):
        engine.ask([TEXT])
    assert (tmp_path / STORED_BEHIND).exists() == (fault is store_behind_lost_pages)


@pytest.mark.parametrize("fault", [None, store_null_blocks], ids=["right", "null blocks"])
def test_pages_that_a_hit_has_no_blocks_of(tmp_path, fault):
    """Behind an engine's own hit windows have null blocks: no pages of what is stored."""
    store_what_was_lost(tmp_path, fault)
    if fault is None:
        assert [load(tmp_path)] == without_cache([STORED], **SETTINGS)
        return
    with pytest.raises(TagError, match="read"):
        load(tmp_path)
