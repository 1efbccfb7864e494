# SPDX-License-Identifier: Apache-2.0
"""Patches of vllm-ascend's own modules, in force only over one of its checkouts."""
