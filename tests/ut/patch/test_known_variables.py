# SPDX-License-Identifier: Apache-2.0
"""vLLM warns of no variable of ours, and reads its own as it did."""

import os

from vllm_ascend.patch.known_variables import register_with_vllm


def test_vllms_own_reader_is_asked_and_does_not_fall_over_our_values(monkeypatch):
    """vLLM 0.23 reads the retention interval itself, as a number, when an engine starts."""
    import vllm.envs

    name = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
    readers = dict(vllm.envs.environment_variables)
    readers[name] = lambda: int(os.environ[name]) if name in os.environ else None
    monkeypatch.setattr(vllm.envs, "environment_variables", readers)
    register_with_vllm()
    register_with_vllm()
    for raw, value in (("256", 256), ("0", 0), ("auto", None), ("", None)):
        monkeypatch.setenv(name, raw)
        assert readers[name]() == value
    monkeypatch.delenv(name)
    assert readers[name]() is None
