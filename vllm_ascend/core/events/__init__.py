# SPDX-License-Identifier: Apache-2.0
"""Publishes KV events for routers, and describes how to read them.

This room makes no decision of the cache; the consumers' side is ``vllm_ascend/kv_events``.
"""
