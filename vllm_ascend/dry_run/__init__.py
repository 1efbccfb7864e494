# SPDX-License-Identifier: Apache-2.0
"""A real vLLM scheduler that runs without a model: its KV layouts and a worker that samples."""
