# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side: what is cached, where a hit may end, and who gets memory.

Modules named after vLLM's, or vllm-ascend's, stand here; each room beside them says what belongs
in it. Nothing in here imports ``patch``.
"""
