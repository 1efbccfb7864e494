# SPDX-License-Identifier: Apache-2.0
"""Rules for KV connectors: where hits may end, failed loads, and what two engines must share.

Patches of vllm-ascend's own connectors are in ``patch/upstream``.
"""
