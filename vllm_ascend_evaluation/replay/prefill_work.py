# SPDX-License-Identifier: Apache-2.0
"""How much of prefill a hit saves: a token costs the more, the deeper it is.

Arithmetic operations of a token, after the public configuration of DeepSeek-V4-Flash: 13 billion
active parameters and attention to 128 window rows in 43 layers and 512 selected rows in 21 are 28e9
wherever the token is. The indexer's scores (64 heads of 128 over a quarter of the tokens before, in
21 layers) and attention to all 128:1 rows (64 heads of 512, twice, in 20 layers) are 106e3 more for
each token before it. So at a depth of 28e9 / 106e3 tokens it costs twice what the first one does.
"""

from __future__ import annotations

DOUBLING_DEPTH = 262_144
"""In tokens."""


def prefill_work(num_tokens: int) -> float:
    """Return what the first tokens of a prompt cost, where the first one costs 1."""
    return num_tokens + num_tokens * num_tokens / (2 * DOUBLING_DEPTH)
