# SPDX-License-Identifier: Apache-2.0
"""What engines agree on and check when they read each other's KV cache blocks.

vllm-ascend's connectors move the blocks; ``patch/upstream`` lets them ask here.
"""
