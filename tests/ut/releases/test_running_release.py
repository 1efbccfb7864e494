# SPDX-License-Identifier: Apache-2.0
"""What the running release calls things, asked of the vLLM that runs."""

import pytest
import vllm
from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec

from vllm_ascend.dry_run.layouts import dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler, make_request
from vllm_ascend.patch.platform import install_all
from vllm_ascend.prefix_cache_config import VARIABLES
from vllm_ascend.releases import find_release, running_release


def test_every_patch_of_the_platform_is_in_force_or_vllms_own():
    rows = {row.target: row.status for row in install_all().rows}
    native = {target for target, status in rows.items() if status == "left to vLLM"}
    not_there = {target for target, status in rows.items() if status == "not available"}
    assert set(rows.values()) <= {"applied", "overridden", "left to vLLM", "not available"}
    assert native == rows.keys() & running_release().native.keys()
    assert not_there == rows.keys() & running_release().absent.keys()


def test_the_running_release_knows_vllms_managers():
    release = running_release()
    assert release is find_release(vllm.__version__)
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=None)
    assert release.chooses_manager(spec)
    assert release.manager_class(spec).__name__ == "FullAttentionManager"

    class Stranger(KVCacheSpec):
        pass

    assert not release.chooses_manager(Stranger(block_size=16))
    assert release.manager_class(Stranger(block_size=16)) is None


@pytest.mark.parametrize("profile", ["best", ""])
def test_names_cover_the_tokens_of_their_blocks_alone_where_ours_serves(monkeypatch, profile):
    """Where vLLM's own coordinator serves drafts, vLLM decides what a name covers."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    monkeypatch.setenv("VLLM_ASCEND_PREFIX_CACHE_PROFILE", profile)
    options = SchedulerOptions(num_blocks=500, num_speculative_tokens=1)
    scheduler = build_scheduler(dsv4_flash_a3(), options)
    num_tokens = 2 * scheduler.kv_cache_manager.block_pool.hash_block_size
    request = make_request(scheduler, "a", list(range(num_tokens)), 1)
    looks_ahead = not profile and hasattr(VllmConfig, "num_hash_lookahead_tokens")
    assert len(request.block_hashes) == (1 if looks_ahead else 2)
