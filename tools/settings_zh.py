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
        "Turns on Ascend's DeepSeek-V4 cache layout and coordinator.",
        "启用昇腾的 DeepSeek-V4 KV 缓存布局与协调器。",
    ),
    "VLLM_PREFIX_CACHE_RETENTION_INTERVAL": Translation(
        "Which sliding-window tails stay cached. 0: those at the end of every prompt. N: "
        "also one every N tokens (a multiple of the alignment in force). auto: N is 32768. "
        "Unset: all of them, as in vLLM.",
        "决定哪些滑动窗口的尾块留在缓存中。0：每个提示词末尾的尾块。"
        "N：另外每隔 N 个 token 保留一处（N 须为当前对齐粒度的整数倍）。"
        "auto：N 为 32768。不设置：与 vLLM 相同，缓存全部尾块。",
    ),
    "VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE": Translation(
        "Rows of a compressed block. Window blocks, state blocks and page padding scale with "
        "it. Default: --block-size if given, else 128.",
        "压缩块的行数。窗口块、状态块的大小和页填充随之缩放。默认取 --block-size 的值，"
        "未给出时为 128。",
    ),
    "VLLM_ASCEND_DSV4_PARTIAL_HITS": Translation(
        "Lets hits end at every granule (128 tokens), also inside a compressed block.",
        "命中可以止于任意粒度边界（每 128 个 token），包括压缩块的内部。",
    ),
    "VLLM_ASCEND_DSV4_SPARSE_STATE": Translation(
        "Gives compressor state blocks only to rows that will be read: the end of a prefill "
        "chunk, and the open windows of a running request.",
        "压缩器状态只为之后会被读取的行占用块：预填充分块的末尾，以及运行中的请求尚未闭合的窗口。",
    ),
    "VLLM_ASCEND_SPARE_TAILS": Translation(
        "Keeps the tails at all other boundaries until their memory is needed.",
        "所有其他边界的尾块在内存被征用之前仍然保留。",
    ),
    "VLLM_ASCEND_EVICTION": Translation(
        "Which kept block is given up first. lru: the least recently used one. protect: the "
        "same, but blocks of returning prompts go last, in up to half of the free memory. A "
        "prompt returns if three quarters of it were sent before.",
        "先淘汰哪个保留块。lru：最久未使用的块。protect：同样如此，"
        "但再次出现的提示词的块最后淘汰，这些块最多占用空闲内存的一半。四分之三的内容曾经发送过的提示词算作再次出现。",
    ),
    "VLLM_ASCEND_PREFIX_CACHE_PROFILE": Translation(
        "best sets retention auto, partial hits, sparse state, spare tails, eviction "
        "protect and admission cached. A variable that is set itself wins.",
        "best 打开保留间隔 auto、部分命中、稀疏状态、备用尾块、淘汰顺序 protect 和放行方式 cached。"
        "单独设置的变量优先。",
    ),
    "VLLM_PIN_SWA_TOKENS": Translation(
        "Gives up the windows at the ends of prefill chunks last, oldest first. All other tails "
        "stay until their memory is needed.",
        "预填充分块末尾处的窗口最后才被淘汰，其中最旧的先淘汰。所有其他尾块在内存被征用之前仍然保留。",
    ),
    "VLLM_PIN_MIN_DROP_SIZE": Translation(
        "A window is pinned only if every windowed group drops at least this many blocks in "
        "one step.",
        "只有当每个窗口组在一步内至少释放这么多块时，窗口才会被固定。",
    ),
    "VLLM_ASCEND_ADMISSION": Translation(
        "Who is let in where memory is short. fcfs: whoever came first. cached: whoever has "
        "the most of its prompt cached, but 50 that came later at most before anybody; after a "
        "prompt returns whose rows are gone, those that run leave up to half of the memory to "
        "the cache.",
        "内存不足时放行谁。fcfs：先到先得。cached：提示词缓存比例最高的请求先行，每个请求"
        "最多被 50 个后到的请求超过；"
        "再次到来的提示词已被淘汰后，运行中的请求把至多一半内存留给缓存。",
    ),
    "VLLM_ASCEND_DP_ROUTING": Translation(
        "Which data-parallel rank gets a request: `cache` weighs what each rank has cached "
        "against what waits there; unset leaves the choice to vLLM, which counts requests.",
        "请求发往哪个数据并行 rank：`cache` 权衡各 rank 已缓存的内容与正在等待的工作；"
        "不设置则由 vLLM 按请求数选择。",
    ),
}
