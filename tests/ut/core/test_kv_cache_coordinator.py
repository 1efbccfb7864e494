# SPDX-License-Identifier: Apache-2.0
"""Where a hit ends and which blocks it lends, on the real pool and managers."""

import pytest
import torch
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from tests.release_marks import WHERE_BLOCKS_COUNT_ROWS, with_our_interval
from tests.ut.core.helpers import make_request
from vllm_ascend.core.layout.dsv4_specs import compressed_spec
from vllm_ascend.patch.engine.patch_kv_cache_coordinator import (
    AscendHybridKVCacheCoordinator,
    get_kv_cache_coordinator,
)
from vllm_ascend.releases import running_release
from vllm_ascend.row_layout.compress_manager import CompressAttentionManager

H = 4  # tokens per hash


def full(block_size: int = 8) -> FullAttentionSpec:
    return FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.bfloat16
    )


def window(tokens: int = 8, block_size: int = 4) -> SlidingWindowSpec:
    return SlidingWindowSpec(
        block_size=block_size,
        num_kv_heads=1,
        head_size=1,
        dtype=torch.bfloat16,
        sliding_window=tokens,
    )


def compressed(rows: int = 4, ratio: int = 4) -> KVCacheSpec:
    return compressed_spec(rows, ratio, num_kv_heads=1, head_size=1, dtype=torch.bfloat16)


class Cache:
    """A coordinator with the few calls that vLLM's KVCacheManager makes."""

    def __init__(
        self,
        *specs,
        num_blocks: int = 200,
        use_eagle: bool = False,
        hash_block_size: int = H,
        **kwargs,
    ) -> None:
        groups = [KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)]
        self.coordinator = AscendHybridKVCacheCoordinator(
            KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups),
            max_model_len=1024,
            use_eagle=use_eagle,
            enable_caching=True,
            enable_kv_cache_events=False,
            dcp_world_size=1,
            pcp_world_size=1,
            hash_block_size=hash_block_size,
            **kwargs,
        )

    def hit(self, request, limit: int | None = None):
        limit = request.num_tokens - 1 if limit is None else limit
        return self.coordinator.find_longest_cache_hit(request.block_hashes, limit)[:2]

    def compute(self, request, chunk: int | None = None) -> int:
        """Run a whole request, chunk by chunk; return its hit. It stays in memory."""
        blocks, hit = self.hit(request)
        coordinator, name, total = self.coordinator, request.request_id, request.num_tokens
        coordinator.allocate_new_computed_blocks(name, blocks, hit, 0)
        done = hit
        while done < total:
            coordinator.new_step_starts()
            coordinator.remove_skipped_blocks(name, done)
            done = min(done + (chunk or total), total)
            coordinator.allocate_new_blocks(name, done, done)
            coordinator.cache_blocks(request, done)
        coordinator.new_step_starts()
        return hit

    def run(self, request, chunk: int | None = None) -> int:
        hit = self.compute(request, chunk)
        self.coordinator.free(request.request_id)
        return hit


def request(name: str, tokens: list[int]):
    return make_request(name, tokens, get_request_block_hasher(H, sha256))


def tokens(n: int, *, start: int = 0) -> list[int]:
    return list(range(start, start + n))


def test_alignment_is_the_lcm_of_tokens_per_block():
    assert Cache(full(8), window(8, 4)).coordinator.lcm_block_size == 8
    assert Cache(compressed(4, 4), window(8, 4)).coordinator.lcm_block_size == 16
    assert Cache(full(8), window(8, 4), scheduler_block_size=12).coordinator.lcm_block_size == 24


@pytest.mark.parametrize("n", [1, 15, 16, 17, 31, 32, 33, 64, 65])
@pytest.mark.parametrize("chunk", [None, 5, 16])
def test_replay_hits_the_last_boundary_before_the_last_token(n, chunk):
    cache = Cache(compressed(4, 4), window(8, 4), local_kv_retention_interval=0)
    assert cache.run(request("a", tokens(n)), chunk) == 0
    assert cache.run(request("b", tokens(n)), chunk) == (n - 1) // 16 * 16


def test_every_group_is_cut_to_the_hit():
    """Blocks behind the hit belong to a running request: lending them would share its rows."""
    cache = Cache(compressed(4, 4), compressed(2, 2), full(4), window(8, 4))
    cache.compute(request("running", tokens(64)))
    other = request("other", tokens(40) + tokens(24, start=900))
    blocks, hit = cache.hit(other)
    assert hit == 32
    assert [len(group) for group in blocks] == [2, 8, 8, 8]
    assert [block.is_null for block in blocks[3]] == [True] * 6 + [False] * 2


def test_compressed_blocks_are_named_by_their_own_tokens():
    """A prompt that differs inside a compressed block must not hit it."""
    cache = Cache(compressed(4, 4), window(4, 4))
    cache.run(request("a", tokens(33)))
    changed = tokens(33)
    changed[13] = 999
    assert cache.run(request("b", changed)) == 0
    assert cache.run(request("c", tokens(33))) == 32


@WHERE_BLOCKS_COUNT_ROWS
def test_compressed_groups_allocate_by_rows():
    cache = Cache(compressed(4, 4), window(4, 4))
    manager = cache.coordinator.single_type_managers[0]
    assert isinstance(manager, CompressAttentionManager)
    assert (manager.block_size, manager.tokens_per_block) == (4, 16)
    for num_tokens, blocks in [(3, 0), (4, 1), (16, 1), (19, 1), (20, 2)]:
        assert manager.get_num_blocks_to_allocate("r", num_tokens, [], 0, num_tokens) == blocks


def test_without_retention_every_boundary_hits():
    cache = Cache(full(8), window(8, 4))
    cache.run(request("a", tokens(64)), chunk=16)
    for shared in (8, 16, 40, 56):
        diverging = request(f"b{shared}", tokens(shared + 4) + tokens(20, start=500 + shared))
        assert cache.hit(diverging)[1] == shared


def test_retention_keeps_interval_and_replay_boundaries_only():
    cache = Cache(full(8), window(8, 4), local_kv_retention_interval=24)
    cache.run(request("a", tokens(64)), chunk=16)

    def hit(shared: int) -> int:
        return cache.hit(request(f"b{shared}", tokens(shared) + tokens(20, start=500)))[1]

    # 56 is the replay boundary of 64 tokens, 64 the finish boundary.
    expected = {23: 0, 24: 24, 47: 24, 48: 48, 55: 48, 56: 56, 63: 56, 64: 64}
    assert {shared: hit(shared) for shared in expected} == expected


def test_replay_boundary_survives_when_the_chunk_ends_on_it():
    for chunk in range(1, 40):
        cache = Cache(full(8), window(8, 4), local_kv_retention_interval=0)
        cache.run(request("a", tokens(33)), chunk)
        assert cache.hit(request("b", tokens(33)))[1] == 32, chunk


def test_blocks_that_cannot_be_hit_stay_scratch_and_are_reused_first():
    cache = Cache(full(8), window(8, 4), local_kv_retention_interval=0, num_blocks=40)
    cache.run(request("a", tokens(64)), chunk=16)
    pool = cache.coordinator.block_pool
    order = [block.block_hash is None for block in pool.free_block_queue.get_all_free_blocks()]
    # 8 full blocks and the tails (2 blocks each) before tokens 56 (replay) and 64 (finish) are
    # cached, everything else is not.
    assert order == [True] * 27 + [False] * 12


def test_a_finished_request_is_given_up_from_its_deep_end_in_all_groups():
    cache = Cache(full(8), compressed(2, 4), window(4, 4), local_kv_retention_interval=0)
    cache.run(request("a", tokens(33)))
    pool = cache.coordinator.block_pool
    cached = [b for b in pool.free_block_queue.get_all_free_blocks() if b.block_hash is not None]
    groups = [int.from_bytes(b.block_hash[-4:], "big") for b in cached]
    assert groups == [2, 0, 1, 0, 1, 0, 1, 0, 1]


def test_a_hole_in_a_downward_closed_group_ends_the_match():
    cache = Cache(full(8), window(8, 4))
    held = request("a", tokens(64))
    cache.compute(held)
    block = cache.coordinator.single_type_managers[0].req_to_blocks["a"][3]
    cache.coordinator.block_pool.evict_blocks({block.block_id})
    assert cache.hit(request("b", tokens(64)))[1] == 24


def test_a_missing_tail_block_moves_the_hit_to_a_shallower_boundary():
    cache = Cache(full(8), window(8, 4))
    cache.compute(request("a", tokens(64)), chunk=8)
    keys = cache.coordinator.block_pool.cached_block_hash_to_block
    probe = request("b", tokens(64))
    blocks, hit = cache.hit(probe)
    assert hit == 56
    cache.coordinator.block_pool.evict_blocks({blocks[1][-2].block_id})
    assert len(keys) > 0
    assert cache.hit(probe)[1] == 48


def test_admission_asks_for_the_window_behind_a_hit():
    """Capped from the first token on, a request behind a long hit would ask for nothing."""
    cache = Cache(full(8), window(8, 4), local_kv_retention_interval=0, max_num_batched_tokens=16)
    cache.run(request("a", tokens(200)))
    probe = request("b", tokens(192) + tokens(108, start=500))
    blocks, hit = cache.hit(probe)
    assert hit == 192

    def needed(num_tokens: int) -> int:
        return cache.coordinator.get_num_blocks_to_allocate(
            "b", num_tokens, blocks, 0, hit, num_tokens, apply_admission_cap=True
        )

    window_cap = window(8, 4).max_admission_blocks_per_request(16, 1024)
    assert window_cap == 7
    # 13 full blocks and the cap; the 24 idle full blocks and the tail's 2 are taken from the pool
    # as well, the tail within the cap.
    assert needed(296) == (37 - 24) + 24 + window_cap
    assert needed(200) == (25 - 24) + 24 + 2 + 2


# Draft layers: a row depends on the token behind it.


def test_eagle_gives_up_one_granule_not_one_block():
    cache = Cache(compressed(4, 4), window(8, 4), use_eagle=True)
    cache.run(request("a", tokens(80)))
    assert cache.hit(request("b", tokens(80)))[1] == 64
    # The prompt ends right behind the boundary: nobody knows what follows it.
    assert cache.hit(request("c", tokens(64 + H)))[1] == 64
    assert cache.hit(request("d", tokens(64 + H - 1)))[1] == 48


def test_eagle_never_serves_a_row_that_another_successor_wrote():
    """Both requests enter a block under the same key; only one fits what comes behind it."""
    cache = Cache(full(8), window(8, 4), use_eagle=True)
    first, second = tokens(16) + [100] * 8, tokens(16) + [200] * 8
    cache.compute(request("a", first))
    assert cache.compute(request("b", second)) == 8
    for name, prompt in (("a", first), ("b", second)):
        blocks, hit = cache.hit(request(f"probe-{name}", prompt))
        assert hit == 16
        for group, manager in zip(blocks, cache.coordinator.single_type_managers, strict=True):
            assert group[-1] is manager.req_to_blocks[name][len(group) - 1]


def test_eagle_replay_boundary_leaves_room_for_the_successor():
    cache = Cache(full(8), window(8, 4), use_eagle=True, local_kv_retention_interval=0)
    cache.run(request("a", tokens(17)))
    assert cache.hit(request("b", tokens(17)))[1] == 8
    cache.run(request("c", tokens(20, start=700)))
    assert cache.hit(request("d", tokens(20, start=700)))[1] == 16


def test_successor_is_learnt_when_the_answer_reaches_it():
    cache = Cache(full(8), window(8, 4), use_eagle=True)
    growing = request("a", tokens(16))
    cache.compute(growing)
    assert cache.hit(request("b", tokens(24)))[1] == 8
    growing.append_output_token_ids(tokens(8, start=16))
    cache.coordinator.allocate_new_blocks("a", 24, 24)
    cache.coordinator.cache_blocks(growing, 24)
    assert cache.hit(request("c", tokens(24)))[1] == 16


def test_draft_layers_are_looked_for_where_they_are():
    cache = Cache(full(8), window(8, 4), use_eagle=True, eagle_attn_layer_names=["layer.1"])
    assert cache.coordinator.eagle_group_ids == {1}
    with pytest.raises(ValueError, match=r"\['layer.9'\] are in no KV cache group"):
        Cache(full(8), window(8, 4), use_eagle=True, eagle_attn_layer_names=["layer.9"])


# Configuration


def test_interval_comes_from_the_environment_unless_given(monkeypatch):
    monkeypatch.setenv("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "auto")
    coordinator = Cache(full(8), window(8, 4)).coordinator
    assert coordinator.local_kv_retention_interval == 32_768
    given = Cache(full(8), window(8, 4), local_kv_retention_interval=16).coordinator
    assert given.local_kv_retention_interval == 16


def test_partial_hits_align_to_the_granule(monkeypatch):
    monkeypatch.setenv("VLLM_ASCEND_DSV4_PARTIAL_HITS", "1")
    cache = Cache(compressed(4, 4), compressed(4, 2), window(8, 4), scheduler_block_size=16)
    assert cache.coordinator.lcm_block_size == 4
    cache.run(request("a", tokens(30)))
    blocks, hit = cache.hit(request("b", tokens(30)))
    assert hit == 28
    # The last block of a compressed group is the one to be copied.
    assert [len(group) for group in blocks] == [2, 4, 7]


def test_the_best_profile_does_not_mind_a_model_without_windows(monkeypatch):
    monkeypatch.setenv("VLLM_ASCEND_PREFIX_CACHE_PROFILE", "best")
    coordinator = Cache(full(8), full(4)).coordinator
    assert coordinator.local_kv_retention_interval is None
    assert Cache(full(8), window(8, 4)).coordinator.local_kv_retention_interval == 32_768


def test_a_pool_of_one_block_size_can_be_named_by_coarser_hashes(monkeypatch):
    """Hashes of 8 tokens name blocks of 4, by place, once both are complete."""
    interval = {"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "8"}
    for name, value in with_our_interval(interval).items():
        monkeypatch.setenv(name, value)
    cache = Cache(full(8), window(8, 4), hash_block_size=8)

    def coarse(name: str, token_ids: list[int]):
        return make_request(name, token_ids, get_request_block_hasher(8, sha256))

    cache.run(coarse("a", tokens(50)), chunk=7)
    for shared in (8, 20, 33, 48):
        probe = coarse(f"b{shared}", tokens(shared) + tokens(20, start=500))
        assert cache.hit(probe)[1] == shared // 8 * 8


def test_wrong_intervals_are_refused():
    with pytest.raises(ValueError, match="multiples of 16 tokens"):
        Cache(compressed(4, 4), window(8, 4), local_kv_retention_interval=24)
    with pytest.raises(ValueError, match="no sliding-window"):
        Cache(full(8), full(4), local_kv_retention_interval=0)


def test_hash_size_must_divide_blocks():
    with pytest.raises(ValueError, match=r"hash_block_size \(4\) must divide"):
        Cache(full(6), window(8, 4))


def test_uniform_specs_are_unpacked():
    packed = UniformTypeKVCacheSpecs.from_specs({"x": compressed(), "y": compressed()})
    cache = Cache(packed, window(8, 4), local_kv_retention_interval=0)
    assert cache.coordinator.lcm_block_size == 16
    cache.run(request("a", tokens(40)))
    assert cache.hit(request("b", tokens(40)))[1] == 32


def test_one_windowed_group_alone():
    cache = Cache(window(8, 4), local_kv_retention_interval=0)
    cache.run(request("a", tokens(30)))
    assert cache.hit(request("b", tokens(30)))[1] == 28


def test_nothing_is_coordinated_when_caching_is_off():
    config = KVCacheConfig(
        num_blocks=10,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["a"], full(8)), KVCacheGroupSpec(["b"], window(8, 4))],
    )
    arguments = dict(
        max_model_len=64,
        use_eagle=False,
        enable_kv_cache_events=False,
        dcp_world_size=1,
        pcp_world_size=1,
        hash_block_size=H,
        **{running_release().step_tokens: 64},
        **running_release().manager_arguments(8),  # releases that tell managers tell coordinators
    )
    plain = get_kv_cache_coordinator(config, enable_caching=False, **arguments)
    assert not isinstance(plain, AscendHybridKVCacheCoordinator)
    ours = get_kv_cache_coordinator(config, enable_caching=True, **arguments)
    assert isinstance(ours, AscendHybridKVCacheCoordinator)


@pytest.mark.skipif(
    not hasattr(HybridKVCacheCoordinator, "get_num_common_prefix_blocks"),
    reason="this vLLM has no cascade attention",
)
def test_compressed_rows_are_no_common_prefix_whatever_their_block_size():
    """Cascade attention does not read them, and counting them walks a long prompt in every step."""
    specs = (compressed(1, 4), compressed(4, 4), full(4), window(8, 4))
    cache = Cache(*specs, local_kv_retention_interval=0)
    cache.compute(request("alone", tokens(64)))
    assert cache.coordinator.get_num_common_prefix_blocks("alone") == [0, 0, 16, 0]
