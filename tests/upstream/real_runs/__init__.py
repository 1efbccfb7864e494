# SPDX-License-Identifier: Apache-2.0
"""Minutes of whole runs of the real vllm-ascend on the CPU: ``make test-real``."""
