# SPDX-License-Identifier: Apache-2.0
"""The patches of vLLM's front end, scheduler and KV cache management: one file per module."""
