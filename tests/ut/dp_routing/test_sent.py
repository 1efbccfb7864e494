# SPDX-License-Identifier: Apache-2.0
"""What is on its way counts once, and goes however the request ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vllm_ascend.dp_routing.sent import SentPrompts

SIZE = 4


def test_a_prompt_counts_until_it_is_computed():
    sent = SentPrompts(2)
    sent.add("a", 1, [11, 12, 13], start=1, left_tokens=9)
    assert (sent.left_tokens, sent.num_waiting) == ([0, 9], [0, 1])
    assert sent.reach(1, [11, 12, 13, 14], 1, 4) == 3
    assert sent.reach(0, [11, 12, 13, 14], 1, 4) == 1
    sent.computed(1, [12, 99], SIZE)
    assert sent.left_tokens == [0, 5]
    assert sent.reach(1, [11, 12, 13], 1, 3) == 1, "what is computed is the index's to know"
    sent.finish("a")
    assert (sent.left_tokens, sent.num_waiting) == ([0, 0], [0, 0])
    assert sent.reach(1, [13], 0, 1) == 0


def test_a_burst_of_one_prompt_is_computed_once():
    """The second request owns nothing: the first one's end alone takes the names away."""
    sent = SentPrompts(1)
    sent.add("a", 0, [1, 2], start=0, left_tokens=9)
    sent.add("b", 0, [1, 2], start=2, left_tokens=1)
    sent.finish("b")
    assert sent.reach(0, [1, 2], 0, 2) == 2
    sent.finish("a")
    assert sent.reach(0, [1, 2], 0, 2) == 0


def test_who_is_unknown_changes_nothing():
    sent = SentPrompts(1)
    sent.finish("never sent")
    sent.computed(0, [1, 2], SIZE)
    assert "never sent" not in sent and sent.left_tokens == [0]


_steps = st.lists(
    st.tuples(st.sampled_from(["add", "computed", "finish"]), st.integers(0, 5), st.integers(0, 8)),
    max_size=60,
)


@given(_steps)
def test_nothing_is_left_when_all_have_ended(steps):
    """In any order of sending, computing and ending, and never less than nothing."""
    sent, live = SentPrompts(2), {}
    for number, (what, which, length) in enumerate(steps):
        names = [which * 100 + place for place in range(length)]
        if what == "add":
            start = sent.reach(which % 2, names, 0, length)
            left = (length - start) * SIZE + 1
            sent.add(str(number), which % 2, names, start, left)
            live[str(number)] = None
        elif what == "computed":
            sent.computed(which % 2, names, SIZE)
        elif live:
            sent.finish(live.popitem()[0])
        assert min(sent.left_tokens) >= 0
        assert sum(sent.num_waiting) == len(live)
    for name in live:
        sent.finish(name)
    assert (sent.left_tokens, sent.num_waiting) == ([0, 0], [0, 0])
    assert not any(sent._owners)
