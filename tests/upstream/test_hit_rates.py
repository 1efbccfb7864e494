# SPDX-License-Identifier: Apache-2.0
"""Hit rates over the overlaid vllm-ascend are those of its own scheduler and specs."""

from __future__ import annotations

import pytest

from tests.upstream import hit_rates


def test_prompts_shorter_than_a_block_of_the_128_to_1_group_hit(overlaid):
    percent, violations = hit_rates.measure(overlaid, "20:2000:1900:4", 128, ("mtp", 0))
    assert percent > 60
    assert violations == []


def test_a_replay_that_fails_ends_the_command(overlaid, capfd):
    with pytest.raises(SystemExit, match="the replay of nothing ended with 1"):
        hit_rates.measure(overlaid, "nothing", 128, ("mtp", 0))
    assert "nothing" in capfd.readouterr().err
