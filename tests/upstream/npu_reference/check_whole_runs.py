# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout on the CPU (see test_whole_runs.py): tokens are Hugging Face's.

Every row that the real worker's operators read is checked as well: see tags.py.
"""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.upstream.npu_reference.engine import MODEL, NUM_ANSWERED, Engine, answered, tokens_of
from tests.upstream.npu_reference.releases import differences_here

BEST = {"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}


def answers_twice(engine: Engine, *, hits: bool) -> None:
    """Answer all prompts, and again with what is cached by then."""
    prompts, expected = zip(*answered(), strict=True)
    for turn in range(2):
        outputs = engine.answer(prompts)
        assert tokens_of(outputs) == list(expected)
        cached = [output.num_cached_tokens for output in outputs]
        assert any(cached) == hits
        if turn and hits:
            assert all(cached[i] for i, prompt in enumerate(prompts) if len(prompt) > 300), cached
    assert engine.tagged.memory.num_read > 10_000


@pytest.mark.parametrize("rows", [32, 64, 128])
def test_hits_change_no_token(rows):
    answers_twice(Engine(rows=rows, switches=BEST), hits=True)


@pytest.mark.parametrize("num_tokens", [9, 77, 130, 1000])
def test_prompts_are_cut_anywhere(num_tokens):
    engine = Engine(rows=32, switches=BEST, max_num_batched_tokens=num_tokens)
    answers_twice(engine, hits=True)


def share_indices(model: Path) -> None:
    """Switch vllm-ascend's index cache on: of two layers that choose rows, the second takes the
    first's choice. Few rows are chosen, so that it makes a difference.
    """
    file = model / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config |= {"use_index_cache": True, "index_topk_pattern": "FS", "index_topk": 64}
    file.write_text(json.dumps(config), encoding="utf-8")


def answers_as_without_hits(engine: Engine) -> None:
    """Answer all prompts without hits and with; layers share their choice of rows.

    A step's rows are chosen in that step, so a hit changes nothing. Hugging Face's model has
    nothing of the kind.
    """
    layers = engine.runner.compilation_config.static_forward_context.values()
    parts = [getattr(layer, "impl", None) for layer in layers]
    parts += [getattr(part, "indexer", None) for part in parts]
    assert any(getattr(part, "skip_topk", False) for part in parts)
    prompts, of_every_layer = zip(*answered(), strict=True)
    cold = []
    for prompt in prompts:
        assert engine.core.scheduler.reset_prefix_cache()
        cold += engine.answer([prompt])
    assert not any(output.num_cached_tokens for output in cold)
    engine.answer(prompts)
    again = engine.answer(prompts)
    assert sum(bool(output.num_cached_tokens) for output in again) > len(prompts) // 2
    assert tokens_of(again) == tokens_of(cold) != list(of_every_layer)


@pytest.mark.parametrize("num_drafts", [0, 1])
def test_hits_where_layers_share_indices(tmp_path, num_drafts):
    model = tmp_path / "sharing"
    shutil.copytree(os.environ[MODEL], model)
    share_indices(model)
    answers_as_without_hits(Engine(rows=32, switches=BEST, model=model, num_drafts=num_drafts))


@pytest.mark.parametrize(("num_drafts", "rows"), [(1, 64), (2, 128), (3, 32)])
def test_drafts_change_no_token(num_drafts, rows):
    answers_twice(Engine(rows=rows, switches=BEST, num_drafts=num_drafts), hits=True)


@pytest.mark.parametrize("num_drafts", [1, 3])
def test_drafts_behind_the_longest_request(num_drafts):
    """It ends with the model's length; its last steps would draft tokens that cannot be.

    What drafts read is not compared: 0.20.2rc1 leaves out the drafts of all requests in such a
    step, and with them rows of the draft layer. Where drafts write is.
    """
    longest = max(len(prompt) for prompt, _ in answered()) + NUM_ANSWERED
    engine = Engine(rows=32, switches=BEST, num_drafts=num_drafts, max_model_len=longest)
    engine.tagged.checks_drafts = False
    answers_twice(engine, hits=True)


def test_without_switches_as_with_them():
    answers_twice(Engine(), hits=False)


@pytest.mark.parametrize(
    "switch",
    [
        "VLLM_ASCEND_DSV4_PARTIAL_HITS=1",
        "VLLM_PREFIX_CACHE_RETENTION_INTERVAL=0",
        "VLLM_ASCEND_DSV4_SPARSE_STATE=1",
        "VLLM_ASCEND_SPARE_TAILS=1",
        "VLLM_PIN_SWA_TOKENS=1",
    ],
)
def test_every_switch_alone(switch):
    name, _, value = switch.partition("=")
    engine = Engine(rows=32, switches={name: value})
    answers_twice(engine, hits=name.endswith("PARTIAL_HITS"))


# All requests together need more blocks than there are.
FEW_BLOCKS = {"num_gpu_blocks_override": 200, "max_model_len": 1024}


def test_requests_are_preempted_and_resumed():
    preempt_and_resume(Engine(rows=32, switches=BEST, **FEW_BLOCKS))


def preempt_and_resume(engine: Engine) -> None:
    """Answer requests that push each other out, then all prompts."""
    prompts, expected = zip(*answered(), strict=True)
    preempted = engine.core.scheduler
    counts = []
    original = preempted._preempt_request

    def counted(*args, **kwargs):
        counts.append(args)
        return original(*args, **kwargs)

    preempted._preempt_request = counted
    # Many are let in at once, and grow.
    short = [[first, *prompt[:20]] for first in range(3, 7) for prompt in prompts[-3:]]
    outputs = engine.answer(short, 150)
    assert counts and all(len(tokens) == 150 for tokens in tokens_of(outputs))
    assert tokens_of(engine.answer(prompts)) == list(expected)


def test_chats_of_eight_turns():
    engine = Engine(rows=32, switches=BEST)
    alone = {}
    history = [[user + 3, *range(20, 150)] for user in range(4)]
    for turn in range(8):
        outputs = engine.answer(history)
        for user, output in enumerate(outputs):
            alone[tuple(history[user])] = list(output.outputs[0].token_ids)
            # All but what came since the last turn, in whole granules of 128.
            if turn:
                assert output.num_cached_tokens >= len(history[user]) - 60 - 128
            history[user] += [*output.outputs[0].token_ids, *range(200 + turn, 245 + turn)]
    engine.core.scheduler.reset_prefix_cache()
    prompts = list(alone)
    again = engine.answer(prompts)
    assert tokens_of(again) == list(alone.values())


def test_aborted_requests_leave_nothing_wrong():
    abort_some(Engine(rows=64, switches=BEST))


def abort_some(engine: Engine) -> None:
    """Abort requests after one step to five, then answer all prompts."""
    from vllm import SamplingParams

    prompts, expected = zip(*answered(), strict=True)
    llm_engine = engine.llm.llm_engine
    sampling = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
    for steps in range(1, 6):
        names = [f"aborted-{steps}-{index}" for index in range(len(prompts))]
        for name, prompt in zip(names, prompts, strict=True):
            llm_engine.add_request(name, {"prompt_token_ids": list(prompt)}, sampling)
        for _ in range(steps):
            llm_engine.step()
        llm_engine.abort_request(names)
    while llm_engine.has_unfinished_requests():
        llm_engine.step()
    assert tokens_of(engine.answer(prompts)) == list(expected)


@pytest.mark.parametrize("num_drafts", [0, 2])
def test_scheduling_ahead_of_the_worker(num_drafts):
    engine = Engine(rows=32, switches=BEST, num_drafts=num_drafts, async_scheduling=True)
    answers_twice(engine, hits=True)


class AtOnce:
    """Takes the place of vLLM's thread for answers, which may be faster than whoever asks it."""

    def submit(self, answer):
        future = Future()
        future.set_result(answer())
        return future


def test_scheduling_ahead_of_answers_that_are_there():
    engine = Engine(rows=32, switches=BEST, num_drafts=2, async_scheduling=True)
    engine.core.model_executor.async_output_thread = AtOnce()
    answers_twice(engine, hits=True)


def scores_of_hits(engine: Engine, allowed: float) -> None:
    """Compare first tokens' scores with and without hits, where rounding may change tokens.

    Args:
        engine: With prefixes cached.
        allowed: By how much a token's logarithmic probability may differ.
    """
    prompts = [prompt for prompt, _ in answered()]
    cold = []
    for prompt in prompts:
        engine.core.scheduler.reset_prefix_cache()
        cold += engine.answer([prompt], 1, logprobs=8)
    engine.answer(prompts)
    for prompt, without in zip(prompts, cold, strict=True):
        (output,) = engine.answer([prompt], 1, logprobs=8)
        assert output.num_cached_tokens or len(prompt) < 130
        there, here = (result.outputs[0].logprobs[0] for result in (without, output))
        both = there.keys() & here.keys()
        assert len(both) >= 6
        for token in both:
            assert here[token].logprob == pytest.approx(there[token].logprob, abs=allowed)


@pytest.mark.skipif(
    differences_here().copies_blocks, reason="vllm-ascend refuses to plan pages as small as these"
)
def test_in_bf16_hits_change_nothing_but_rounding():
    """The worker's own types; products of other shapes round otherwise."""
    scores_of_hits(Engine(rows=64, switches=BEST, exact=False), 0.3)
