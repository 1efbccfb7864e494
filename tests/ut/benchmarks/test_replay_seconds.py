# SPDX-License-Identifier: Apache-2.0
"""What is computed beside the servers: a rate where a promise breaks, and prompts that are new."""

import json
from argparse import Namespace

import pytest

from benchmarks.replay_seconds import crossing, difference, of_rate


def test_a_promise_breaks_between_two_rates():
    """Times that double with the rate reach 300 at 1.5 times the rate that has 200."""
    assert crossing([1, 2, 4], [100, 200, 400], 300) == pytest.approx(3.0)
    assert crossing([1, 2, 4], [100, 200, 400], 100) == pytest.approx(1.0)


def test_the_first_break_counts():
    assert crossing([1, 2, 3, 4], [100, 400, 100, 400], 200) == pytest.approx(2**0.5)


@pytest.mark.parametrize("times", [[100, 200], [400, 800]])
def test_a_promise_that_never_breaks_or_always_has_no_rate(times):
    assert crossing([1, 2], times, 300) is None


def test_a_difference_is_of_what_was_measured():
    assert difference(110.0, 100.0) == "+10 %" and difference(80.0, 100.0) == "-20 %"
    assert difference(None, 100.0) == difference(1.0, None) == "-"


def test_prompts_of_another_rate_share_what_they_shared(tmp_path):
    traffic = tmp_path / "traffic.jsonl"
    prompts = [[1, 2, 3], [1, 2, 4], [5]]
    rows = [{"prompt_token_ids": prompt, "output_length": 2} for prompt in prompts]
    traffic.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = Namespace(seconds=10)
    path, num_requests = of_rate(traffic, 2.0, options)
    copies = [json.loads(line) for line in path.read_text().splitlines()]
    one, two, three = (copy["prompt_token_ids"] for copy in copies)
    assert one[:2] == two[:2] and one[2] != two[2] and three[0] not in one
    assert not set(one) & {1, 2, 3} and all(copy["output_length"] == 2 for copy in copies)
    assert num_requests == 3 and of_rate(traffic, 3.0, options)[0] != path


@pytest.mark.parametrize(("rate", "num_requests"), [(0.02, 100), (2.0, 120), (99.0, 150)])
def test_as_many_requests_as_come_at_a_rate(rate, num_requests, tmp_path):
    traffic = tmp_path / "traffic.jsonl"
    traffic.write_text('{"prompt_token_ids": [1], "output_length": 2}\n' * 150)
    assert of_rate(traffic, rate, Namespace(seconds=60))[1] == num_requests
