# SPDX-License-Identifier: Apache-2.0
"""Objects of two engines have one name only if both compute the same rows of the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm.config import KVTransferConfig, VllmConfig

from tests.e2e.tier.models import model_at, model_config
from tests.e2e.tier.test_random_traffic import cell
from vllm_ascend.dry_run import scheduler as dry_run
from vllm_ascend.kv_transfer import model_identity
from vllm_ascend.tier import layout as tier_layout
from vllm_ascend.tier.layout import TierLayout, describe

CELL = cell("dsv4-rows", "mtp1", "best")
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 4096,
}


@pytest.fixture(autouse=True)
def small_units(monkeypatch, switch):
    monkeypatch.setattr(tier_layout, "LEAST_UNIT_TOKENS", 1)
    switch(CELL.environment)


def engine(model: Path | str, **options: Any) -> VllmConfig:
    """Return the configuration of an engine of its own."""
    layout, chosen = CELL.layout, CELL.options(4.0)
    vllm_config = dry_run._vllm_config(layout, chosen)
    vllm_config.model_config = model_config(
        model, **{"max_model_len": chosen.max_model_len, **options}
    )
    vllm_config.kv_transfer_config = KVTransferConfig()
    return vllm_config


def described(vllm_config: VllmConfig, pool: str = "") -> TierLayout:
    layout, chosen = CELL.layout, CELL.options(4.0)
    kv_cache_config = dry_run._kv_cache_config(layout, chosen, vllm_config)
    return describe(kv_cache_config, vllm_config, pool)


def names(vllm_config: VllmConfig, pool: str = "") -> str:
    return described(vllm_config, pool).digest


def set_on(part: str, **fields: Any) -> Callable[[VllmConfig], None]:
    def change(vllm_config: VllmConfig) -> None:
        target = getattr(vllm_config, part) if part else vllm_config
        for name, value in fields.items():
            object.__setattr__(target, name, value)

    return change


def test_engines_with_equal_weights_share_wherever_the_weights_lie(tmp_path):
    one, other = model_at(tmp_path / "one"), model_at(tmp_path / "mnt" / "other")
    assert names(engine(one)) == names(engine(other))
    assert described(engine(one)).weights == described(engine(other)).weights


def test_the_same_path_with_other_weights_is_another_model(tmp_path):
    model = model_at(tmp_path / "model", 0.0)
    before = names(engine(model)), names(engine(model), "pool")
    model_at(model, 1.0)
    assert names(engine(model)) != before[0]
    assert names(engine(model), "pool") != before[1], (
        "a pool's name does not say that rows are equal"
    )


@pytest.mark.parametrize(
    "options",
    [
        {"hf_overrides": {"rope_theta": 1e6}},
        {"hf_overrides": {"rope_parameters": YARN}},
        {"max_model_len": 4096},  # longrope chooses its factors by it
        {"dtype": "float16"},
    ],
)
def test_options_that_change_rows_are_in_the_name(tmp_path, options):
    model = model_at(tmp_path / "model")
    assert names(engine(model, **options)) != names(engine(model))


@pytest.mark.parametrize(
    "change",
    [
        set_on("model_config", quantization="fp8"),
        set_on("cache_config", cache_dtype="fp8"),
        set_on("load_config", model_loader_extra_config={"sharded": True}),
        set_on("speculative_config", method="eagle"),
        set_on("attention_config", backend="another"),
    ],
)
def test_settings_that_change_rows_are_in_the_name(tmp_path, change):
    model = model_at(tmp_path / "model")
    changed = engine(model)
    change(changed)
    assert names(changed) != names(engine(model))


@pytest.mark.parametrize("release", ["vllm_version", "vllm_ascend_version"])
def test_another_release_computes_other_rows(tmp_path, monkeypatch, release):
    model = model_at(tmp_path / "model")
    before = names(engine(model))
    told = "1.2.3" if release == "vllm_version" else lambda: "1.2.3"
    monkeypatch.setattr(model_identity, release, told)
    assert names(engine(model)) != before


def test_a_draft_models_weights_are_in_the_name(tmp_path):
    model = model_at(tmp_path / "model")

    def drafting(value: float) -> VllmConfig:
        vllm_config = engine(model)
        draft = model_at(tmp_path / "draft", value)
        # vLLM's own overrides of a draft's configuration are a function.
        config = engine(draft, hf_overrides=lambda config: config).model_config
        object.__setattr__(vllm_config.speculative_config, "draft_model_config", config)
        return vllm_config

    before = names(drafting(0.0))
    assert names(drafting(0.0)) == before
    assert names(drafting(1.0)) != before


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (set_on("load_config", load_format="dummy"), "at random"),
        (set_on("cache_config", calculate_kv_scales=True), "from the first prompts"),
        (set_on("", weight_transfer_config=object()), "brings others later"),
        (set_on("model_config", model_weights="s3://bucket"), "from another place"),
        (set_on("model_config", model="organisation/never-seen"), "nor in the hub's cache"),
    ],
)
def test_weights_that_nobody_can_tell_are_one_engines_unless_a_pool_is_named(
    tmp_path, monkeypatch, change, why
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = model_at(tmp_path / "model")
    first, second = engine(model), engine(model)
    change(first)
    change(second)
    assert why in described(first).weights
    assert names(first) == names(first), "the same in all processes of an engine"
    assert names(first) != names(second)
    assert names(first, "pool") == names(second, "pool")
    assert names(first, "pool") != names(second, "another pool")


def test_dummy_weights_of_another_seed_are_others_even_in_a_pool(tmp_path):
    model = model_at(tmp_path / "model")
    first, second = engine(model), engine(model, seed=7)
    for vllm_config in (first, second):
        set_on("load_config", load_format="dummy")(vllm_config)
    assert names(first, "pool") != names(second, "pool")
