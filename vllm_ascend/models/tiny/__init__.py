# SPDX-License-Identifier: Apache-2.0
"""Tiny DeepSeek-V4 models with random weights, to try the cache without an NPU."""
