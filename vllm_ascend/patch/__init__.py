# SPDX-License-Identifier: Apache-2.0
"""Import-time patches of vLLM: wiring only, the algorithms live in ``vllm_ascend.core``."""
