# SPDX-License-Identifier: Apache-2.0
"""The models of traffic look like the traces that they are fitted to.

The numbers of the traces are recorded here, measured with ``python -m vllm_ascend traffic``:
Mooncake's conversation trace (kvcache-ai/Mooncake, FAST25-release/traces/conversation_trace.jsonl)
and 123 Claude Code sessions of callanjfox/kv-cache-tester (``traces/``; how: docs/hit-rates.md).
"""

from collections import Counter
from functools import cache
from itertools import accumulate, chain, islice, takewhile

import numpy as np
import pytest

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.curves.policies import PrefixTrace, belady, lru
from vllm_ascend_evaluation.replay.generators.agentic import MAX_TOKENS, agentic
from vllm_ascend_evaluation.replay.generators.chat import MAX_PROMPT_TOKENS, chat
from vllm_ascend_evaluation.replay.generators.draws import LogNormal, Zipf
from vllm_ascend_evaluation.replay.generators.sessions import Draft, num_tokens
from vllm_ascend_evaluation.replay.sources import WorkloadSource

BLOCK = 512
# Blocks of DeepSeek-V4-Flash's layout in so many GiB.
BLOCKS = {8: 2_553, 16: 5_106, 32: 10_212}
EVERYTHING = 1 << 40
HOUR = 12_031


@cache
def first(model: str, number: int) -> tuple[Draft, ...]:
    drafts = {"chat": chat, "agentic": agentic}[model](seed=0)
    return tuple(islice(drafts, number))


@cache
def prefix_trace(model: str, number: int) -> PrefixTrace:
    """Cut prompts into blocks without writing them out.

    A text follows one other text only, so the last token of a block stands for the whole prefix.
    """
    prompts, lengths = [], []
    for draft in first(model, number):
        ends = list(accumulate(map(len, draft.texts)))
        last = [*range(BLOCK, ends[-1], BLOCK), ends[-1]]
        texts = np.searchsorted(ends, last)
        prompts.append(
            tuple(draft.texts[t][end - 1 - ends[t]] for t, end in zip(texts, last, strict=True))
        )
        lengths.append(ends[-1])
    return PrefixTrace(BLOCK, tuple(prompts), tuple(lengths))


def test_the_short_cut_names_the_same_blocks():
    drafts = first("agentic", 40)
    written = PrefixTrace.of((d.request().prompt_token_ids for d in drafts), BLOCK)
    quick = prefix_trace("agentic", 40)
    assert quick.prompt_tokens == written.prompt_tokens
    pairs = set(zip(chain(*quick.prompts), chain(*written.prompts), strict=True))
    assert len(pairs) == len({q for q, _ in pairs}) == len({w for _, w in pairs})


@pytest.mark.parametrize(
    ("model", "number", "mean", "median", "p90", "longest", "answers", "tolerance"),
    [
        # The hour, within 6 %; of its first 1,000 requests the prompts are longer than usual.
        ("chat", HOUR, 12_035, 6_909, 27_367, 126_195, 343, 0.06),
        ("chat", 1_000, 13_733, 8_430, 28_887, 121_924, 349, 0.25),
        ("agentic", 1_000, 59_726, 57_506, 99_753, 130_299, 494, 0.2),
        ("agentic", 4_364, 65_181, 63_444, 106_208, 130_964, 430, 0.1),
    ],
)
def test_lengths(model, number, mean, median, p90, longest, answers, tolerance):
    drafts = first(model, number)
    prompts = [num_tokens(draft.texts) for draft in drafts]
    assert np.mean(prompts) == pytest.approx(mean, rel=tolerance)
    assert np.median(prompts) == pytest.approx(median, rel=tolerance)
    assert np.percentile(prompts, 90) == pytest.approx(p90, rel=tolerance)
    assert max(prompts) == pytest.approx(longest, rel=0.06)
    assert np.mean([d.output_tokens for d in drafts]) == pytest.approx(answers, rel=0.15)


@pytest.mark.parametrize(
    ("model", "number", "unlimited", "lru_rates", "belady_rates", "points"),
    [
        ("chat", HOUR, 37.36, (6.07, 11.74, 21.71), (28.46, 34.94, 37.36), 2.5),
        ("chat", 1_000, 21.57, (4.90, 10.33, 17.64), (21.57, 21.57, 21.57), 4.0),
        ("agentic", 1_000, 92.37, (85.86, 91.91, 92.37), (91.20, 92.37, 92.37), 2.5),
        ("agentic", 4_364, 95.02, (85.83, 92.70, 94.38), (91.42, 94.58, 95.02), 2.5),
    ],
)
def test_hits(model, number, unlimited, lru_rates, belady_rates, points):
    trace = prefix_trace(model, number)
    assert trace.rate(lru(trace, EVERYTHING)) == pytest.approx(unlimited, abs=points)
    for capacity, one, other in zip(BLOCKS.values(), lru_rates, belady_rates, strict=True):
        assert trace.rate(lru(trace, capacity)) == pytest.approx(one, abs=points)
        assert trace.rate(belady(trace, capacity)) == pytest.approx(other, abs=points)


def test_a_chat_service_keeps_its_pace():
    """12,031 requests in 59 minutes: no fewer at the start, when all sessions would be new."""
    arrivals = np.array([draft.arrival_ms for draft in first("chat", HOUR)])
    assert arrivals[0] >= 0 and (np.diff(arrivals) >= 0).all()
    assert arrivals[-1] / 60_000 == pytest.approx(58.95, rel=0.05)
    assert arrivals[1_000] / arrivals[-1] == pytest.approx(1_000 / HOUR, rel=0.15)


def test_coding_sessions():
    """Whole sessions: 123 of them sent 4,364 requests with 65,181 tokens on average."""
    whole = [draft for draft in first("agentic", 16_000) if draft.session < 123]
    per_session = Counter(draft.session for draft in whole)
    starts = {draft.session: draft for draft in reversed(whole)}
    prompts = [num_tokens(draft.texts) for draft in whole]
    begin = [num_tokens(draft.texts) for draft in starts.values()]
    assert len(per_session) == 123
    assert np.median(list(per_session.values())) == pytest.approx(24, rel=0.2)
    assert np.mean(prompts) == pytest.approx(65_181, rel=0.1)
    assert np.median(begin) == pytest.approx(19_563, rel=0.1)
    assert np.mean(begin) == pytest.approx(33_791, rel=0.1)
    gaps = np.diff(sorted(draft.arrival_ms for draft in starts.values())) / 1000
    assert np.mean(gaps) == pytest.approx(30, rel=0.2)


def test_requests_come_in_bursts():
    by_session: dict[int, list[float]] = {}
    for draft in first("agentic", 16_000):
        by_session.setdefault(draft.session, []).append(draft.arrival_ms / 1000)
    gaps = np.concatenate([np.diff(times) for times in by_session.values()])
    assert np.median(gaps) == pytest.approx(15, rel=0.15)
    assert np.mean(gaps > 60) == pytest.approx(0.171, abs=0.05)


@pytest.mark.parametrize("model", ["chat", "agentic"])
def test_nothing_is_longer_than_the_model_it_was_asked_of(model):
    longest = max(num_tokens(d.texts) + d.output_tokens for d in first(model, 12_000))
    assert longest <= (MAX_TOKENS if model == "agentic" else MAX_PROMPT_TOKENS + 2_000)
    workload = WorkloadSource(f"{model}:50").load()
    workload.check_arrivals()
    assert workload.within(135_000) is workload


def test_more_requests_begin_alike_and_a_seed_changes_them():
    few, more, others = (
        list(islice(WorkloadSource(source, seed).load().requests(), 20))
        for source, seed in (("agentic:20", 1), ("agentic:90", 1), ("agentic:20", 2))
    )
    assert few == more != others


def test_a_mix_is_half_of_each_in_an_hour():
    workload = WorkloadSource("mix:300").load()
    requests = list(workload.requests())
    assert len(requests) == workload.num_requests == 300
    arrivals = [request.arrival_ms for request in requests]
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] / 3_600_000 == pytest.approx(1, rel=0.4)
    coding = [request for request in requests if request.session >= 1 << 30]
    assert 0.35 < len(coding) / 300 < 0.65
    ids = [
        {request.prompt_token_ids[0] >= 1 << 30 for request in kind}
        for kind in (coding, [request for request in requests if request.session < 1 << 30])
    ]
    assert ids == [{True}, {False}]


def test_sizes_are_checked():
    with pytest.raises(BadInputError, match="chat:0: requests must be at least 1, not 0"):
        WorkloadSource("chat:0").load()
    with pytest.raises(BadInputError, match="agentic: seed must be at least 0, not -1"):
        WorkloadSource("agentic", -1).load()


def test_draws():
    rng = np.random.default_rng(0)
    drawn = [LogNormal(100, 0.5, minimum=10, maximum=400).draw(rng) for _ in range(4_000)]
    assert np.median(drawn) == pytest.approx(110, rel=0.05)
    assert min(drawn) > 10 and max(drawn) == 400
    ranks = Counter(Zipf(5).draw(rng) for _ in range(6_000))
    assert sorted(ranks) == [0, 1, 2, 3, 4]
    assert ranks[0] / ranks[3] == pytest.approx(4, rel=0.15)


def test_sub_agents_share_tools_and_come_at_once():
    """Beside the tools of their session they use others, which other sub-agents use, too."""
    tools: dict[int, set[range]] = {}
    for draft in takewhile(lambda d: d.session < 300, first("agentic", 16_000)):
        tools.setdefault(draft.session, set()).add(draft.texts[0])
    others = Counter(chain.from_iterable(found for found in tools.values() if len(found) > 1))
    assert sum(len(found) > 1 for found in tools.values()) >= 5
    assert others.most_common(1)[0][1] > 1
