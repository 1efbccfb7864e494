# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's real Python over reference operators: the CPU stands for the NPU."""
