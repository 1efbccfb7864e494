# SPDX-License-Identifier: Apache-2.0
"""Layouts whose compressed blocks count rows, as vllm-ascend had them up to its release 0.23.0.

``vllm_ascend.worker`` is its workers' half. Both go with the last release that counts rows.
"""
