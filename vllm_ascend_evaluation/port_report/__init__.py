# SPDX-License-Identifier: Apache-2.0
"""What a port to another vLLM or vllm-ascend would meet: every patch target in its files.

``files`` reads a tree, ``modules`` finds names in it, ``definitions`` compares what was found,
``census`` judges the patches that :mod:`vllm_ascend.overlay.patch_list` tells, ``render`` and
``markdown`` show the result. Nothing of a tree is imported.
"""
