# SPDX-License-Identifier: Apache-2.0
"""The retention interval of the command line beside that of the environment."""

from __future__ import annotations

from vllm_ascend.core.policy.switches import PrefixCacheConfig


def agreed_interval(option: int | None, config: PrefixCacheConfig) -> int | None:
    """Return the interval of ``--prefix-cache-retention-interval`` in tokens, ``None`` without one.

    It overrides a profile's interval; the variable may say the same.

    Raises:
        ValueError: The variable and the option contradict each other.
    """
    by_variable = None if config.retention_from_profile else config.retention
    if option is not None and by_variable not in (None, option):
        raise ValueError(
            f"VLLM_PREFIX_CACHE_RETENTION_INTERVAL={by_variable!r} contradicts "
            f"--prefix-cache-retention-interval {option}: set one of them, or both alike"
        )
    return option
