# SPDX-License-Identifier: Apache-2.0
"""Under UCM's rule every chunk of a prompt has a tail, and no answer has one; ours is not that."""

from benchmarks.children import Child
from benchmarks.tier_rules import RUNS, UCM

# Three prompts in turn, of which the first 12 chunks are the same, and 300 tokens each has alone.
WORKLOAD, NUM_CHUNKS = "1x3:6144:300:2", 12


def test_what_each_rule_stores():
    question = {"trace": WORKLOAD, "tier_gib": 4.0, "kv_gib": 8.0, "requests": 3}
    num_tails = {}
    for rule, cache, environment in RUNS:
        with Child("benchmarks.tier_rules", "--answer", environment=environment) as child:
            said = child.ask({"rule": rule, **question})
        num_tails[rule, cache] = said["num_tails"]
        assert said["prompt_tokens"] == 3 * 6444 and said["stored_bytes"] > 0
    assert {num for (rule, _), num in num_tails.items() if rule == UCM} == {NUM_CHUNKS}
    assert NUM_CHUNKS not in {num for (rule, _), num in num_tails.items() if rule != UCM}
