# SPDX-License-Identifier: Apache-2.0
"""What prompts for a server are made of: prefixes stay, blocks stay apart."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.server_access.vocabulary import FIRST_ID
from vllm_ascend_evaluation.replay.http.prompts import PromptShape, TokenMap, fit, only
from vllm_ascend_evaluation.replay.readers.mooncake import BLOCK_TOKENS
from vllm_ascend_evaluation.replay.trace import TraceRequest, Workload
from vllm_ascend_evaluation.replay.workloads import shared_prefix

IDS = st.integers(0, 2**63 - 1)
BLOCK_IDS = st.integers(0, 2**63 // BLOCK_TOKENS - 2)


def workload_of(*prompts, output_tokens=2):
    def requests():
        return (TraceRequest(list(prompt), output_tokens) for prompt in prompts)

    return Workload("test", "prompts of a test", 4, len(prompts), requests)


@given(
    prefix=st.lists(IDS, max_size=30),
    one=st.lists(IDS, max_size=30),
    other=st.lists(IDS, max_size=30),
    vocab_size=st.integers(100, 200_000),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None)
def test_the_map_keeps_prefixes_and_the_vocabulary(prefix, one, other, vocab_size, seed):
    map_tokens = TokenMap(vocab_size, seed)
    first = map_tokens(prefix + one).tolist()
    second = TokenMap(vocab_size, seed)(prefix + other).tolist()
    assert first[: len(prefix)] == second[: len(prefix)] == map_tokens(prefix).tolist()
    assert len(first) == len(prefix) + len(one)
    assert all(FIRST_ID <= token < vocab_size for token in first + second)


@given(blocks=st.lists(BLOCK_IDS, min_size=2, max_size=20, unique=True))
@settings(deadline=None)
def test_the_map_separates_blocks(blocks):
    map_tokens = TokenMap(1000, 0)
    runs = [map_tokens(range(b * BLOCK_TOKENS, (b + 1) * BLOCK_TOKENS)) for b in blocks]
    for one, other in itertools.combinations(runs, 2):
        # Of 512 random tokens of 996 half a one is equal by chance.
        assert (one == other).sum() < 20
        # What is left of a block at the largest scale.
        assert tuple(one[::128]) != tuple(other[::128])


@given(
    prefix=st.lists(IDS, max_size=64),
    one=st.lists(IDS, min_size=1, max_size=64),
    other=st.lists(IDS, min_size=1, max_size=64),
    scale=st.sampled_from([1, 2, 4, 16, 128]),
)
@settings(deadline=None)
def test_a_scaled_prefix_is_shared_in_proportion(prefix, one, other, scale):
    fitted = fit(workload_of(prefix + one, prefix + other), PromptShape(scale=scale))
    first, second = (request.prompt_token_ids for request in fitted.workload.requests())
    assert len(first) == -(-len(prefix + one) // scale)
    shared = -(-len(prefix) // scale)
    assert first[:shared] == second[:shared]


def test_a_block_of_a_trace_becomes_whole_tokens():
    blocks = list(range(7 * BLOCK_TOKENS, 9 * BLOCK_TOKENS))
    fitted = fit(workload_of(blocks), PromptShape(scale=16))
    (request,) = fitted.workload.requests()
    assert len(request.prompt_token_ids) == 2 * 512 // 16
    expected = TokenMap(1000, 0)(blocks)[::16]
    assert request.prompt_token_ids == expected.tolist()


def test_seeds_differ():
    ids = list(range(100))
    assert TokenMap(1000, 0)(ids).tolist() != TokenMap(1000, 1)(ids).tolist()


def test_dropped_limited_and_capped():
    prompts = [range(n) for n in (10, 50, 30, 10, 10)]
    shape = PromptShape(scale=2, max_prompt_tokens=15, max_requests=4, max_output_tokens=1)
    fitted = fit(workload_of(*prompts), shape)
    requests = list(fitted.workload.requests())
    assert [len(request.prompt_token_ids) for request in requests] == [5, 15, 5]
    assert {request.output_tokens for request in requests} == {1}
    assert (fitted.workload.num_requests, fitted.num_dropped) == (3, 1)
    rest = only(fitted.workload, {0, 2}.__contains__)
    assert rest.num_requests == len(list(rest.requests())) == 2


def test_nothing_left():
    with pytest.raises(BadInputError, match="--max-prompt-tokens 9"):
        fit(workload_of(range(10)), PromptShape(max_prompt_tokens=9))


@pytest.mark.parametrize("wrong", [{"scale": 3}, {"scale": 256}, {"vocab_size": 5}])
def test_shapes_that_make_no_sense(wrong):
    with pytest.raises(BadInputError, match="--"):
        PromptShape(**wrong).check()


def test_generated_prompts_stay_apart():
    workload = shared_prefix(
        "s",
        num_requests=4,
        input_tokens=300,
        shared_tokens=100,
        output_tokens=1,
        concurrency=1,
        seed=0,
    )
    requests = list(fit(workload, PromptShape()).workload.requests())
    heads = {tuple(request.prompt_token_ids[:100]) for request in requests}
    tails = {tuple(request.prompt_token_ids[100:110]) for request in requests}
    assert (len(heads), len(tails)) == (1, 4)
