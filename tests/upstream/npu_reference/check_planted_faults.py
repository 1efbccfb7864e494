# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout on the CPU (see test_whole_runs.py): faults of a worker are caught."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.upstream.npu_reference.engine import Engine, answered, tokens_of
from tests.upstream.npu_reference.releases import differences_here
from tests.upstream.npu_reference.tags import TagError

BEST = {"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}


@pytest.fixture
def engine() -> Engine:
    """An engine with prefixes cached."""
    made = Engine(rows=32, switches=BEST)
    prompts, expected = zip(*answered(), strict=True)
    assert tokens_of(made.answer(prompts)) == list(expected)
    return made


def wrap(owner: Any, name: str, wrapped: Callable[..., Any]) -> None:
    """Replace an attribute by a function of the original and its arguments."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: wrapped(original, *args, **kwargs))


def caught(engine: Engine) -> str:
    """Return what the tags say when the prompts are asked again, in other rows of the tables."""
    with pytest.raises(TagError) as error:
        engine.answer([prompt for prompt, _ in reversed(answered())])
    return str(error.value)


def wrap_copies(wrapped: Callable[..., Any]) -> None:
    """Replace what makes block copies, ours or vllm-ascend's own; the copies are the last."""
    own = differences_here().copies_blocks
    module = "model_runner_v1" if own else "patch_gpu_model_runner"
    owner = importlib.import_module(f"vllm_ascend.worker.{module}")
    wrap(owner, "copy_kv_cache_blocks_inplace" if own else "copy_blocks", wrapped)


def test_a_copy_that_is_not_made(engine):
    wrap_copies(lambda original, *args, **kwargs: None)
    assert "read" in caught(engine)


def test_a_copy_behind_the_step_that_writes(engine):
    late: list[Callable[[], None]] = []

    def put_off(original, *args, **kwargs):
        late.append(partial(original, *args, **kwargs))

    def then_copy(original, *args, **kwargs):
        result = original(*args, **kwargs)
        for copy in late:
            copy()
        late.clear()
        return result

    wrap_copies(put_off)
    wrap(engine.runner, "_model_forward", then_copy)
    assert "read" in caught(engine)


def test_a_copy_from_another_block(engine):
    def shifted(original, *args, **kwargs):
        *tensors, copies = args
        original(*tensors, [type(copy)(copy[0] + 1, copy[1]) for copy in copies], **kwargs)

    wrap_copies(shifted)
    assert "read" in caught(engine)


@pytest.mark.parametrize("which", [0, -1])
def test_a_table_that_is_not_uploaded_once(engine, which):
    """Of a group with windows: a request that comes has blocks there that are new to the row."""
    windowed = [
        table
        for table, group in zip(
            engine.runner.input_batch.block_table.block_tables,
            engine.runner.kv_cache_config.kv_cache_groups,
            strict=True,
        )
        if "SlidingWindow" in str(group.kv_cache_spec)
    ]
    skipped = []

    def upload(original, *args, **kwargs):
        if not skipped:
            skipped.append(args)
            return None
        return original(*args, **kwargs)

    wrap(windowed[which], "commit_block_table", upload)
    caught(engine)
    assert skipped


def test_a_start_that_is_off_by_a_block(engine, monkeypatch):
    from vllm_ascend.attention.dsa_v1 import AscendDSAMetadataBuilder

    name = differences_here().builds_prefills
    original = getattr(AscendDSAMetadataBuilder, name)

    def build(*args, **kwargs):
        metadata = original(*args, **kwargs)
        metadata.start_pos = metadata.start_pos + 128
        return metadata

    monkeypatch.setattr(AscendDSAMetadataBuilder, name, build)
    assert "positions" in caught(engine)


def test_state_blocks_of_another_request(engine):
    """The rows of the tables of state groups name the blocks behind a request's own."""

    def append_next(original, blocks, row):
        original([block and block + 1 for block in blocks], row)

    for table in engine.runner.input_batch.block_table.block_tables:
        if table.block_size < 16:
            wrap(table, "append_row", append_next)
    caught(engine)


def test_state_blocks_that_stay_those_of_the_last_request(engine):
    """Nothing is entered into the tables of state groups any longer."""
    for table in engine.runner.input_batch.block_table.block_tables:
        if table.block_size < 16:
            wrap(table, "append_row", lambda original, blocks, row: None)
    caught(engine)


def test_nothing_is_caught_without_a_fault(engine):
    prompts, expected = zip(*answered(), strict=True)
    assert tokens_of(engine.answer(prompts)) == list(expected)
