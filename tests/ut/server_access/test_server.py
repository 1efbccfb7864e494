# SPDX-License-Identifier: Apache-2.0
"""Counters are read as vLLM's /metrics writes them."""

import pytest

from vllm_ascend.server_access.server import parse_metrics
from vllm_ascend_evaluation.regress.hit_counts import (
    OUR_HITS,
    PROMPT_TOKENS,
    VLLMS_HITS,
    counted_use,
    hit_counter,
)

# Of a real server, vLLM 0.20.2 with the profile best: 24 prompts of 6,000 tokens and one ahead of
# them, 16 in flight, on 260 blocks. Requests waited, and two were preempted.
PAGE = """\
# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="a b"} 762129.0
# TYPE vllm:prefix_cache_queries_created gauge
vllm:prefix_cache_queries_created{engine="0",model_name="a b"} 1.7e+09
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="a b"} 660480.0
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="a b"} 2.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="a b"} 150027.0
# TYPE vllm:prompt_tokens_created gauge
vllm:prompt_tokens_created{engine="0",model_name="a b"} 1.795573178232821e+09
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{engine="0",model_name="a b",source="local_compute"} 24843.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="a b",source="local_cache_hit"} 125184.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="a b",source="external_kv_transfer"} 0.0
"""
OURS = """\
# TYPE vllm_ascend:prefix_hit_tokens histogram
vllm_ascend:prefix_hit_tokens_bucket{engine="0",le="1.0",model_name="a b"} 1.0
vllm_ascend:prefix_hit_tokens_bucket{engine="0",le="+Inf",model_name="a b"} 25.0
vllm_ascend:prefix_hit_tokens_count{engine="0",model_name="a b"} 25.0
vllm_ascend:prefix_hit_tokens_sum{engine="0",model_name="a b"} 125184.0
# TYPE vllm_ascend:kv_cache_evictions_total counter
vllm_ascend:kv_cache_evictions_total{engine="0",tier="scratch"} 7.0
vllm_ascend:kv_cache_evictions_total{engine="0",tier="cached"} 3.0
"""
EVICTIONS = "vllm_ascend:kv_cache_evictions_total"
PREEMPTIONS = "vllm:num_preemptions_total"


@pytest.mark.parametrize(("page", "source"), [(PAGE, VLLMS_HITS), (PAGE + OURS, OUR_HITS)])
def test_requests_that_wait_count_once(page, source):
    """By look-ups it would be 86.66 %."""
    use = counted_use({}, parse_metrics(page).counters)
    assert (use.prompt_tokens, use.hit_tokens, use.source) == (150_027, 125_184, source)
    assert use.hit_rate_percent == pytest.approx(83.44, abs=0.01)
    assert use.counters[PREEMPTIONS] == 2


def test_look_ups_alone_tell_nothing():
    counters = {"vllm:prefix_cache_queries_total": 10.0, "vllm:prefix_cache_hits_total": 9.0}
    assert hit_counter(counters) is None and counted_use({}, counters) is None


def test_counters_are_summed_over_engines_and_labels():
    second = PAGE.replace('engine="0"', 'engine="1"').replace("125184.0", "816.0")
    samples = (line for line in second.splitlines() if "by_source_total{" in line)
    counters = parse_metrics(PAGE + "\n".join(samples) + "\n" + OURS).counters
    assert counters[VLLMS_HITS] == 126_000
    assert counters[EVICTIONS] == 10


def test_the_difference_is_what_happened_in_between():
    before = {PROMPT_TOKENS: 100_000.0, OUR_HITS: 100_000.0, EVICTIONS: 4.0}
    use = counted_use(before, parse_metrics(PAGE + OURS).counters)
    assert (use.prompt_tokens, use.hit_tokens, use.counters[EVICTIONS]) == (50_027, 25_184, 6)


def test_where_nothing_was_counted_there_is_no_hit_rate():
    same = parse_metrics(PAGE).counters
    assert counted_use(same, same).hit_rate_percent is None


def test_a_server_started_anew_in_between_is_noticed():
    with pytest.raises(ValueError, match="went backwards"):
        counted_use({PROMPT_TOKENS: 2e6}, parse_metrics(PAGE).counters)


def test_the_start_of_the_process_is_read_where_it_is_said():
    assert parse_metrics(PAGE).started == ""
    line = "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.79531867513e+09\n"
    assert parse_metrics(PAGE + line).started == "2026-11-22T03:37:55.130+00:00"


def test_several_front_ends_that_have_served_nobody_are_idle():
    """As vLLM 0.20.2 tells with --data-parallel-size 2 before its first request."""
    page = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 0.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 0.0
"""
    metrics = parse_metrics(page)
    assert (metrics.num_live, metrics.num_engines) == (0, 2)


def test_requests_that_run_or_wait_are_counted_over_engines():
    assert parse_metrics(PAGE).num_live is None
    live = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b"} 2.0
vllm:num_requests_running{engine="1",model_name="a b"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a b"} 4.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="a b",reason="capacity"} 4.0
"""
    assert parse_metrics(PAGE + live).num_live == 7
    assert parse_metrics(PAGE + live).num_engines == 2 and parse_metrics(PAGE).num_engines == 1
    assert (
        parse_metrics(live.replace("2.0", "0.0").replace("1.0", "0").replace("4.0", "0")).num_live
        == 0
    )
