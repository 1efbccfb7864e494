# SPDX-License-Identifier: Apache-2.0
"""What KV connectors change: where hits may end, failed loads, what two engines must agree on.

Patches of vllm-ascend's own connectors are in ``patch/upstream``.
"""
