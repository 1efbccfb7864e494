# SPDX-License-Identifier: Apache-2.0
"""What these patches have in common; see :mod:`vllm_ascend.patch.features`."""

from vllm_ascend.patch.features import Entries

DSV4_ON_CPU: Entries = {
    "feature": "dsv4-on-cpu",
    "upstream": "none: vLLM has no DeepSeek-V4 for the CPU",
    "remove_when": "vLLM runs DeepSeek-V4 on the CPU",
}
