# SPDX-License-Identifier: Apache-2.0
"""How a model's KV cache is laid out: specs, groups, tokens per block, DeepSeek-V4's own sizes.

Nothing here knows a request, a pool or what is cached.
"""
