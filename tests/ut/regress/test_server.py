# SPDX-License-Identifier: Apache-2.0
"""Counters are read as vLLM's /metrics writes them."""

import pytest

from vllm_ascend.regress.server import HITS, QUERIES, cache_use, parse_metrics
from vllm_ascend.replay.http.client import ServerError

PAGE = """\
# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="a b"} 1000.0
vllm:prefix_cache_queries_total{engine="1",model_name="a b"} 500.0
# TYPE vllm:prefix_cache_queries_created gauge
vllm:prefix_cache_queries_created{engine="0",model_name="a b"} 1.7e+09
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="a b"} 800.0
vllm:prefix_cache_hits_total{engine="1",model_name="a b"} 1.0e+02
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="a b"} 0.5
# TYPE vllm_ascend:kv_cache_evictions_total counter
vllm_ascend:kv_cache_evictions_total{engine="0",tier="scratch"} 7.0
vllm_ascend:kv_cache_evictions_total{engine="0",tier="cached"} 3.0
"""
EVICTIONS = "vllm_ascend:kv_cache_evictions_total"


def test_counters_are_summed_over_engines_and_labels():
    assert parse_metrics(PAGE).counters == {QUERIES: 1500.0, HITS: 900.0, EVICTIONS: 10.0}


def test_the_difference_is_what_happened_in_between():
    before = {QUERIES: 100.0, HITS: 50.0}
    use = cache_use(before, parse_metrics(PAGE).counters)
    assert (use.query_tokens, use.hit_tokens, use.counters) == (1400, 850, {EVICTIONS: 10.0})
    assert use.hit_rate_percent == pytest.approx(100 * 850 / 1400)


def test_nothing_looked_up_is_no_hit():
    same = parse_metrics(PAGE).counters
    assert cache_use(same, same).hit_rate_percent == 0


def test_a_server_started_anew_in_between_is_noticed():
    with pytest.raises(ServerError, match="started anew"):
        cache_use({QUERIES: 2000.0, HITS: 900.0}, parse_metrics(PAGE).counters)


def test_the_start_of_the_process_is_read_where_it_is_said():
    assert parse_metrics(PAGE).started == ""
    line = "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.79531867513e+09\n"
    assert parse_metrics(PAGE + line).started == "2026-11-22T03:37:55.130+00:00"
