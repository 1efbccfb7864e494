# SPDX-License-Identifier: Apache-2.0
"""Block sizes in force: what hits align to, what hashes cover, rows per compressed block."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vllm.config import CacheConfig, KVTransferConfig
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, MambaSpec

from tests.e2e.core import layouts
from tests.ut.core.real_groups import compressed, full, window
from vllm_ascend.core.connectors.connector_rules import allows_partial_hits
from vllm_ascend.core.layout.block_sizes import (
    Granularity,
    dsv4_compressed_block_size,
    resolve_block_sizes,
)
from vllm_ascend.dry_run import scheduler as factory
from vllm_ascend.dry_run.layouts import dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions
from vllm_ascend.patch.platform.patch_kv_cache_interface import get_dsv4_compressed_kv_block_size
from vllm_ascend.prefix_cache_config import load_config
from vllm_ascend.releases import running_release

PARTIAL = {"VLLM_ASCEND_DSV4_PARTIAL_HITS": "1"}
RETENTION = {"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "auto"}
ROWS = "VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE"

# Tokens per block: 16, 4 and 8. Rows of the first cover 4 tokens each.
SPECS = [compressed(4, 4), full(4), window(8, 16)]


@pytest.mark.parametrize(("ends_inside", "alignment"), [(False, 16), (True, 8)])
def test_the_units_of_groups(ends_inside, alignment):
    granularity = Granularity.of(SPECS, ends_inside_blocks=ends_inside)
    assert granularity == Granularity((16, 4, 8), granule=8, alignment=alignment)


@pytest.mark.parametrize(
    ("hash_tokens", "exact_names", "fits"),
    [(4, False, True), (2, False, True), (8, False, False), (8, True, True), (3, True, False)],
)
def test_hashes_that_can_name_every_block(hash_tokens, exact_names, fits):
    granularity = Granularity.of(SPECS, ends_inside_blocks=True)
    if fits:
        granularity.check_hash_size(hash_tokens, exact_names=exact_names)
        return
    with pytest.raises(ValueError, match=rf"hash_block_size \({hash_tokens}\) .*\[16, 4, 8\]"):
        granularity.check_hash_size(hash_tokens, exact_names=exact_names)


def test_a_hash_may_not_reach_over_a_boundary():
    """16 tokens are a multiple of every block, but hits align to 8."""
    with pytest.raises(ValueError, match="divide 8"):
        Granularity.of(SPECS, ends_inside_blocks=True).check_hash_size(16, exact_names=True)


class KnowsGranules:
    knows_granules = True


class Plain:
    pass


def connector(name: str) -> KVTransferConfig:
    return KVTransferConfig(kv_connector=name, kv_connector_module_path=__name__, kv_role="kv_both")


def sizes(layout, environment: dict[str, str], *, kv_transfer=None, ranks: int = 1, **cache):
    """Return what the scheduler would be told."""
    config = factory._vllm_config(layout, SchedulerOptions(num_blocks=2))
    config.kv_transfer_config = kv_transfer
    config.parallel_config.decode_context_parallel_size = ranks
    for name, value in cache.items():
        setattr(config.cache_config, name, value)
    groups = [KVCacheGroupSpec([name], spec) for name, spec in layout.specs.items()]
    kv_cache_config = KVCacheConfig(num_blocks=2, kv_cache_tensors=[], kv_cache_groups=groups)
    return resolve_block_sizes(
        kv_cache_config,
        config,
        load_config(environment),
        hash_tokens=getattr(config.cache_config, running_release().hash_size_field),
        allows_partial_hits=allows_partial_hits(kv_transfer),
    )


@pytest.mark.parametrize(
    ("environment", "more", "expected"),
    [
        ({}, {}, (16_384, 8)),
        (RETENTION, {}, (16_384, 128)),
        (PARTIAL, {}, (128, 128)),
        (PARTIAL, {running_release().hash_size_field: 64}, (128, 64)),
        ({}, {"enable_prefix_caching": False}, (16_384, 16_384)),
        ({}, {"ranks": 2}, (32_768, 32_768)),
        (PARTIAL, {"kv_transfer": connector("Plain")}, (16_384, 8)),
        (PARTIAL, {"kv_transfer": connector("KnowsGranules")}, (128, 128)),
        # A connector reads the hashes even where nothing is cached here.
        ({}, {"kv_transfer": connector("Plain"), "enable_prefix_caching": False}, (16_384, 8)),
    ],
)
def test_what_deepseek_v4s_hits_align_to_and_its_hashes_cover(
    environment, more, expected, monkeypatch
):
    module = "vllm.distributed.kv_transfer.kv_connector.factory.supports_kw"
    monkeypatch.setattr(module, lambda *args: True)
    assert sizes(dsv4_flash_a3(), environment, **more) == expected


def test_mamba_states_are_named_by_vllms_rule():
    """By the greatest size that divides all blocks, 16 tokens; the granule is 32."""
    layout = layouts.mamba_hybrid(16)
    specs = {
        name: replace(spec, block_size=32) if isinstance(spec, MambaSpec) else spec
        for name, spec in layout.specs.items()
    }
    assert sizes(replace(layout, specs=specs), RETENTION) == (32, 16)


def test_a_hash_size_that_fits_no_block_is_refused():
    with pytest.raises(ValueError, match=r"hash_block_size \(48\)"):
        sizes(dsv4_flash_a3(), PARTIAL, **{running_release().hash_size_field: 48})


@pytest.mark.parametrize(
    ("environment", "block_size", "rows"),
    [({}, None, 128), ({}, 64, 64), ({ROWS: "32"}, None, 32), ({ROWS: "64"}, 64, 64)],
)
def test_rows_of_a_compressed_block(environment, block_size, rows):
    cache_config = CacheConfig(block_size=block_size)
    assert dsv4_compressed_block_size(load_config(environment), cache_config) == rows
    if block_size is None:
        assert dsv4_compressed_block_size(load_config(environment), None) == rows


@pytest.mark.parametrize(
    ("environment", "block_size", "error"),
    [
        ({ROWS: "64"}, 128, f"{ROWS}=64 contradicts --block-size 128"),
        ({}, 16, "--block-size 16 is invalid for DeepSeek-V4"),
    ],
)
def test_rows_that_cannot_be_are_refused(environment, block_size, error):
    with pytest.raises(ValueError, match=error):
        dsv4_compressed_block_size(load_config(environment), CacheConfig(block_size=block_size))


@pytest.mark.parametrize("ratio", [0, 1, 4, 128])
def test_every_ratio_has_the_configured_rows(ratio, monkeypatch):
    assert get_dsv4_compressed_kv_block_size(ratio) == 128
    monkeypatch.setenv(ROWS, "32")
    assert get_dsv4_compressed_kv_block_size(ratio) == 32


def test_a_ratio_that_deepseek_v4_does_not_have_is_refused():
    with pytest.raises(ValueError, match=r"compress_ratio \(8\) must be 0, 1, 4 or 128"):
        get_dsv4_compressed_kv_block_size(8)
