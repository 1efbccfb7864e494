# SPDX-License-Identifier: Apache-2.0
"""vLLM's own unit tests, without the patches and with them: nothing may change that is not named.

They come with vLLM's source distribution. ``make test-vllm`` runs them; see docs/contributing.md.
"""
