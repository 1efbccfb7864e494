# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend doctor``: would serving do what the settings ask for?

Every probe is a function that returns what it found and never raises. What only a vLLM process
can tell is asked in a process of its own, which loads the plugins as serving does.
"""
