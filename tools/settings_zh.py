# SPDX-License-Identifier: Apache-2.0
"""Chinese for the settings page: each variable's effect, beside the English that it renders."""

# ruff: noqa: RUF001 - Chinese has its own punctuation

from __future__ import annotations

from typing import NamedTuple


class Translation(NamedTuple):
    """A sentence in Chinese, and the English one that it was made from.

    When the English changes, the page's check fails until the Chinese has been looked at again.
    """

    english: str
    chinese: str


EFFECTS = {
    "VLLM_ASCEND_APPLY_DSV4_PATCH": Translation(
        "Ascend's DeepSeek-V4 cache layout and coordinator.",
        "启用昇腾的 DeepSeek-V4 KV 缓存布局与协调器。",
    ),
    "VLLM_PREFIX_CACHE_RETENTION_INTERVAL": Translation(
        "Which sliding-window tails stay cached: 0 keeps the end of every prompt, N also every N "
        "tokens (a multiple of the alignment in force), auto is N = 32768; unset caches all of "
        "them, as vLLM does.",
        "决定哪些滑动窗口的尾块留在缓存中：0 只保留每个提示词的末尾；N 另外每隔 N 个 token "
        "保留一处（N 须为当前对齐粒度的整数倍）；auto 即 N = 32768；不设置则与 vLLM 相同，"
        "缓存全部尾块。",
    ),
    "VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE": Translation(
        "Rows per compressed block; window and state blocks and page padding scale with it. "
        "Default: --block-size if given, else 128.",
        "每个压缩块的行数；窗口块、状态块的大小和页填充随之缩放。默认取 --block-size 的值，"
        "未给出时为 128。",
    ),
    "VLLM_ASCEND_DSV4_PARTIAL_HITS": Translation(
        "Hits end at every granule (128 tokens), inside a compressed block as well.",
        "命中可以止于任意粒度边界（每 128 个 token），包括压缩块的内部。",
    ),
    "VLLM_ASCEND_DSV4_PARTIAL_MIN_HIT_TOKENS": Translation(
        "Tokens that a partial hit must gain over the last hit that ends with whole blocks; a "
        "smaller gain is not worth a block copy.",
        "部分命中比止于整块的命中至少要多出的 token 数；收益更小时不值得为它复制一个块。",
    ),
    "VLLM_ASCEND_DSV4_SPARSE_STATE": Translation(
        "Compressor state holds blocks only for rows that will be read: of a prefill chunk its "
        "end, of a running request its open windows.",
        "压缩器状态只为之后会被读取的行占用块：预填充块只保留其末尾，运行中的请求只保留未闭合的窗口。",
    ),
    "VLLM_ASCEND_SPARE_TAILS": Translation(
        "Tails at boundaries that nothing asks to keep stay hittable until their memory is needed.",
        "没有保留要求的边界，其尾块在内存被征用之前仍然可以命中。",
    ),
    "VLLM_ASCEND_PROTECT_RETURNING": Translation(
        "Prompts of which three quarters have come before are given up after all others, as long "
        "as they fill no more than half of the free memory. Where the order is learned, that is so "
        "from the start, and no order without it is ever in force.",
        "四分之三的内容曾经出现过的提示词在其他提示词之后才被淘汰，但最多占用空闲内存的一半。"
        "在学习淘汰顺序时，这一保护从一开始就生效，不会采用没有它的顺序。",
    ),
    "VLLM_ASCEND_EVICTION": Translation(
        "Which kept block is given up first: the least recently used one, or the one least likely "
        "to be used again, by what was learned from the traffic so far. As long as all orders hit "
        "the same, learned protects returning prompts; where a simpler order hits more, that one "
        "is in force.",
        "先淘汰哪个保留块：最久未使用的（lru），或根据已有流量学到的最不可能再次使用的（learned）。"
        "各种顺序命中相同时，learned 保护再次出现的提示词；某个更简单的顺序命中更多时，"
        "以该顺序为准。",
    ),
    "VLLM_ASCEND_PREFIX_CACHE_PROFILE": Translation(
        "best: retention auto, partial hits, sparse state, spare tails and the learned order of "
        "eviction, each unless its own variable says otherwise.",
        "best：保留间隔 auto、部分命中、稀疏状态、备用尾块和学习的淘汰顺序全部打开；"
        "单独设置的变量优先。",
    ),
    "VLLM_PIN_SWA_TOKENS": Translation(
        "The windows at which prefill chunks end are given up after everything else, oldest "
        "first; all other tails stay hittable until their memory is needed.",
        "每个预填充分块结束处的窗口最后才被淘汰，其中最旧的先淘汰；"
        "其余尾部在其内存被需要之前仍可命中。",
    ),
    "VLLM_PIN_MIN_DROP_SIZE": Translation(
        "Blocks that every window must drop at once for the one just left to be pinned.",
        "每个窗口一次至少释放多少块，刚刚离开的窗口才会被固定。",
    ),
}
