# SPDX-License-Identifier: Apache-2.0
"""Refuses a model runner of vLLM that cannot do what the scheduler asks for."""

from __future__ import annotations

_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


def check_model_runner(*, is_v2: bool, counts_rows: bool, copies_blocks: bool) -> None:
    """Refuse vLLM's second model runner where it would compute wrong rows without a word.

    Its own block tables take every token for a row, which is wrong where the layout counts rows,
    and it ignores the copies in a ``SchedulerOutput``, of blocks that hits end inside.

    Args:
        is_v2: It will serve, in a release where it makes no block copies.

    Raises:
        ValueError: It cannot be used.
    """
    if not is_v2:
        return
    if counts_rows:
        raise ValueError(
            f"{_VARIABLE}=1 cannot be used with the KV cache layout of DeepSeek-V4 on Ascend "
            "(VLLM_ASCEND_APPLY_DSV4_PATCH=1), whose block tables it does not know: set it to 0"
        )
    if copies_blocks:
        raise ValueError(
            f"{_VARIABLE}=1 cannot be used with hits that end inside blocks "
            "(VLLM_ASCEND_DSV4_PARTIAL_HITS=1, also set by the profile 'best'), because it does "
            f"not copy blocks: set {_VARIABLE}=0 or VLLM_ASCEND_DSV4_PARTIAL_HITS=0"
        )
