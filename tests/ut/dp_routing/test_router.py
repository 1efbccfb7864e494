# SPDX-License-Identifier: Apache-2.0
"""The choice as a front end makes it, from what its ranks tell and what it has sent itself."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from vllm import SamplingParams

from tests.ut.dp_routing.test_index import PREFIX, SIZE, anew, news
from vllm_ascend.dp_routing.choice import LIVE_TOKENS, LOAD_WEIGHT
from vllm_ascend.dp_routing.router import Prompt, Router

NAMES = list(range(101, 2101))
IDLE = [[0, 0]] * 4
PROMPT = Prompt(NAMES, len(NAMES) * SIZE + 3)


@pytest.fixture
def router() -> Router:
    made = Router(4)
    for rank in range(4):
        assert not made.hear(rank, anew(PREFIX))
    return made


def cold(number: int, granules: int = 2000) -> Prompt:
    """A prompt that nobody has seen."""
    first = 10_000 * (number + 1)
    return Prompt(range(first, first + granules), granules * SIZE + 3)


def test_a_session_stays_where_it_is(router):
    router.hear(2, news(2, stored=NAMES[:1500]))
    assert router.choose("a", PROMPT, IDLE) == 2
    assert router.stats.chosen[2, "cache"] == 1
    router.first_token("a", 1500 * SIZE)
    assert router.stats.num_exact == 1 and router.stats.hit_tokens[2] == 1500 * SIZE


def test_what_is_pulled_goes_where_most_rows_are_unless_more_requests_live_there(router):
    pulled = replace(PROMPT, is_pulled=True)
    router.hear(2, news(2, stored=NAMES[:1500]))
    assert router.choose("a", pulled, IDLE) == 2
    assert not router.sent.left_tokens[2], "it computes nothing"
    router.first_token("a", PROMPT.num_tokens - 1)
    assert router.stats.num_exact == 0, "its hit is what was pulled, and tells nothing"
    assert LOAD_WEIGHT * 1500 * SIZE < LIVE_TOKENS
    assert router.choose("b", pulled, [[0, 0], [0, 0], [0, 1], [0, 0]]) != 2


def test_who_wants_log_probabilities_of_a_prompt_hits_nothing(router):
    request = SimpleNamespace(
        prompt_token_ids=list(range(10 * SIZE)),
        mm_features=None,
        lora_request=None,
        cache_salt=None,
        prompt_embeds=None,
        sampling_params=SamplingParams(),
    )
    assert len(router.prompt_of(request).names) == 10
    request.sampling_params = SamplingParams(prompt_logprobs=0)
    assert not router.prompt_of(request).names


def test_a_request_with_a_prefill_side_s_answer_is_pulled(router):
    told = {"do_remote_prefill": True, "remote_block_ids": [[1]]}
    for extra, is_pulled in (({"kv_transfer_params": told}, True), ({}, False), (None, False)):
        parameters = SimpleNamespace(extra_args=extra, skip_reading_prefix_cache=False)
        request = SimpleNamespace(prompt_token_ids=None, sampling_params=parameters)
        assert router.prompt_of(request).is_pulled is is_pulled


def test_a_burst_of_one_prompt_goes_to_one_rank(router):
    assert len({router.choose(str(i), PROMPT, IDLE) for i in range(6)}) == 1


def test_a_burst_of_many_prompts_goes_to_all_ranks(router):
    chosen = [router.choose(str(i), cold(i), IDLE) for i in range(8)]
    assert sorted(chosen) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_rank_that_is_full_of_work_loses_even_a_session(router):
    router.hear(2, news(2, stored=NAMES[:1500]))
    assert router.choose("a", PROMPT, [[0, 0], [0, 0], [190, 32], [0, 0]]) != 2


def test_what_the_client_names_is_counted_too(router):
    router.send("a", PROMPT, 3)
    assert router.stats.chosen[3, "client"] == 1
    assert router.choose("b", PROMPT, IDLE) == 3, "its prompt is on its way there"


def test_without_news_there_is_nothing_to_choose_by(router):
    assert router.knows_any and not Router(4).knows_any


def test_an_aborted_request_leaves_nothing(router):
    rank = router.choose("a", PROMPT, IDLE)
    router.finished("a")
    assert not any(router.sent.left_tokens) and "a" not in router.sent
    assert router.choose("b", cold(1), IDLE) != rank or router._recent[rank] > 0


def test_an_id_that_comes_anew_is_booked_once(router):
    router.hear(2, news(2, stored=NAMES))
    for _ in range(3):
        router.choose("a", PROMPT, IDLE)
    assert sum(router.sent.num_waiting) == 1 and sum(router._sharers.values()) == 1
    router.finished("a")
    assert not any(router.sent.left_tokens) and not any(router.sent.num_waiting)
    assert not router._sharers and not router._live


def test_others_count_where_there_are_several_front_ends():
    """Each of their requests is taken to be like one of ours."""
    router = Router(2, client_index=0, client_count=2)
    assert router.choose("a", cold(0), [[0, 0], [3, 0]]) == 0
    assert router._load(1, [3, 0])[0] == 3 * router.sent.left_tokens[0]
    assert router._load(0, [1, 0])[0] == router.sent.left_tokens[0], "the one that waits is ours"


def test_front_ends_begin_with_different_ranks():
    first = [
        Router(4, client_index=i, client_count=4).choose("a", Prompt((), 9), IDLE) for i in range(4)
    ]
    assert sorted(first) == [0, 1, 2, 3]


def test_a_hot_prefix_spreads(router):
    """The prompts share 1,500 of 2,000 granules, and all of them live at once."""
    shared = NAMES[:1500]
    chosen = []
    for number in range(40):
        own = range(10_000 * (number + 1), 10_000 * (number + 1) + 500)
        chosen.append(router.choose(str(number), Prompt([*shared, *own], 8003), IDLE))
        router.first_token(str(number), 0)
        router.hear(chosen[-1], news(len(chosen) + 1, stored=[*shared, *own], start=1))
        for rank in set(range(4)) - {chosen[-1]}:
            router.hear(rank, news(len(chosen) + 1, start=1))
    assert set(chosen) == {0, 1, 2, 3}
    assert sum(router._sharers.values()) == 39, "the first one shared nothing yet"
    for number in range(40):
        router.finished(str(number))
    assert not router._sharers and not router._live


def test_a_gap_is_told(router):
    router.hear(1, news(2, stored=NAMES))
    assert router.hear(1, news(9, stored=NAMES)) is True
    assert router.stats.num_gaps[1] == 1
    assert router.choose("a", PROMPT, IDLE) != 1 or router.stats.chosen[1, "load"] == 1
