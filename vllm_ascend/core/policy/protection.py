# SPDX-License-Identifier: Apache-2.0
"""Recognizes returning prompts, and bounds the memory protected for them: arithmetic on ints.

Most prompts never come again, and under LRU they push out those that do. So the blocks of a prompt
that returns are given up after all others. Its own repetitions protect them: a flood of new prompts
protects nothing. A bound leaves the other half of the free memory to new prompts.

Sources of the idea: Karedla, Love and Wherry, "Caching Strategies to Improve Disk System
Performance", IEEE Computer 27(3), 1994 (segments); Johnson and Shasha, "2Q", VLDB 1994 (names that
outlive their content).
"""

from __future__ import annotations

PROTECTED_PERCENT = 50  # of the free blocks, at most
RETURNING_PERCENT = 75  # of a prompt, at least


def is_returning(num_seen_tokens: int, num_prompt_tokens: int) -> bool:
    """Whether a prompt returns: so many of its leading tokens have been sent before."""
    return 100 * num_seen_tokens >= RETURNING_PERCENT * num_prompt_tokens


def num_overflowing(num_protected: int, num_free: int) -> int:
    """Return by how many the protected free blocks exceed their share.

    Args:
        num_free: All free blocks, the protected ones included.
    """
    return max(num_protected - num_free * PROTECTED_PERCENT // 100, 0)
