# SPDX-License-Identifier: Apache-2.0
"""The ceiling against brute force and against the documented workloads."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_ascend_evaluation.replay.bounds import SeenPrompts, survey
from vllm_ascend_evaluation.replay.trace import TraceRequest, Workload
from vllm_ascend_evaluation.replay.workloads import named_workload


def common_prefix(one, other) -> int:
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return length


@st.composite
def prompts(draw):
    """Prompts that leave each other anywhere, also at and around block ends."""
    stem = draw(st.lists(st.integers(0, 2), min_size=300, max_size=300))
    cuts = st.sampled_from([0, 1, 5, 127, 128, 129, 255, 256, 257, 300])
    tails = st.lists(st.integers(0, 2), min_size=1, max_size=20)
    return [
        stem[:cut] + tail
        for cut, tail in draw(st.lists(st.tuples(cuts, tails), min_size=1, max_size=6))
    ]


@settings(max_examples=100, deadline=None)
@given(prompts())
def test_index_equals_brute_force(all_prompts):
    index = SeenPrompts()
    for number, prompt in enumerate(all_prompts):
        expected = max((common_prefix(prompt, p) for p in all_prompts[:number]), default=0)
        assert index.common_prefix(np.array(prompt)) == expected


def test_a_repeat_leaves_the_last_token():
    requests = [TraceRequest([1, 2, 3, 4], 1), TraceRequest([1, 2, 3, 4], 1)]
    workload = Workload("x", "", 1, 2, lambda: iter(requests))
    surveyed = survey(workload, [2])
    assert surveyed.bounds.granule_1 == pytest.approx(100 * 3 / 8)
    assert surveyed.bounds.aligned == {2: 100 * 2 / 8}


@pytest.mark.parametrize(
    ("name", "granule_1", "granule_128", "aligned_4096"),
    [
        ("W1", 89.71, 88.78, 49.84),
        ("W2", 89.99, 89.69, 78.99),
        ("W3", 25.01, 24.99, 22.22),
        ("W5", 31.71, 31.64, 30.75),
    ],
)
def test_documented_workloads(name, granule_1, granule_128, aligned_4096):
    bounds = survey(named_workload(name), [4096]).bounds
    assert bounds.granule_1 == pytest.approx(granule_1, abs=0.006)
    assert bounds.granule_128 == pytest.approx(granule_128, abs=0.006)
    assert bounds.aligned[4096] == pytest.approx(aligned_4096, abs=0.006)


def test_the_digest_names_the_requests():
    one, again, other = (survey(named_workload("W2", seed=s), []).digest for s in (0, 0, 1))
    assert one == again != other
