# SPDX-License-Identifier: Apache-2.0
"""What measures the prefix cache and proves it exact: nothing that a server needs.

It may import ``vllm_ascend``; nothing there imports it, and no overlay copies it.
"""
