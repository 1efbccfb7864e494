# SPDX-License-Identifier: Apache-2.0
"""What is published of the cache for routers: KV events, and how they are to be read.

Nothing in here decides anything; the consumers' side is ``vllm_ascend/kv_events``.
"""
