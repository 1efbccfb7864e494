# SPDX-License-Identifier: Apache-2.0
"""What a hit gives up for drafts: of DSpark nothing, where a cache of this project is in force."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import KVTransferConfig

from vllm_ascend.core.checks.drafts import (
    check_method,
    keep_last_block,
    prefill_without_drafts,
    settle_drafts,
)
from vllm_ascend.patch.engine import patch_arg_utils
from vllm_ascend.prefix_cache_config import VARIABLES, load_config
from vllm_ascend.releases import find_release

DSV4 = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1"}
WITHOUT_DSPARK, WITH_DSPARK = find_release("0.20.2"), find_release("0.30.0")
BEST = {"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}


def drafting(model_type: str) -> Any:
    """Return a configuration whose drafts are DSpark's."""
    return SimpleNamespace(
        model_config=SimpleNamespace(hf_text_config=SimpleNamespace(model_type=model_type)),
        speculative_config=SimpleNamespace(method="dspark", disable_eagle_block_drop=False),
        kv_transfer_config=None,
    )


def drops_a_block(method: str, environment: dict[str, str]) -> bool:
    drafts = SimpleNamespace(method=method, disable_eagle_block_drop=False)
    keep_last_block(drafts, load_config(environment))  # type: ignore[arg-type]
    return not drafts.disable_eagle_block_drop


@pytest.mark.parametrize(
    ("method", "environment", "drops"),
    [
        ("dspark", BEST, False),
        ("dspark", {**DSV4, "VLLM_ASCEND_DSV4_PARTIAL_HITS": "1"}, False),
        ("dspark", DSV4, True),  # as upstream
        ("dspark", {}, True),
        ("mtp", BEST, True),
        ("dflash", BEST, True),
    ],
)
def test_only_dspark_keeps_the_block_that_vllm_drops(method, environment, drops):
    assert drops_a_block(method, environment) is drops


@pytest.mark.parametrize(
    ("model_type", "environment", "drops"),
    [("deepseek_v4", BEST, False), ("deepseek_v4", {}, True), ("qwen3", BEST, True)],
)
def test_drafts_of_other_models_are_left_to_vllm(model_type, environment, drops):
    vllm_config = drafting(model_type)
    settle_drafts(vllm_config, load_config(environment))
    assert vllm_config.speculative_config.disable_eagle_block_drop is not drops


def test_drafts_are_settled_where_the_configuration_is_made(monkeypatch):
    for name, value in BEST.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(patch_arg_utils, "check_settings", lambda *args: None)
    monkeypatch.setattr(patch_arg_utils, "running_release", lambda: WITH_DSPARK)
    vllm_config = drafting("deepseek_v4")
    create = patch_arg_utils.wrap_create_engine_config.around(lambda self: vllm_config)
    assert create(SimpleNamespace(speculative_config=None)) is vllm_config
    assert vllm_config.speculative_config.disable_eagle_block_drop


@pytest.mark.parametrize("environment", [DSV4, BEST])
def test_no_engine_is_started_where_only_the_scheduler_is_tested(monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(patch_arg_utils, "running_release", lambda: find_release("0.33.0"))
    create = patch_arg_utils.wrap_create_engine_config.around(lambda self: pytest.fail("started"))
    with pytest.raises(ValueError, match=r"^of vLLM 0\.33\.0 only the scheduler .* or unset "):
        create(SimpleNamespace(speculative_config=None))


def test_an_engine_without_switches_is_vllms_own(monkeypatch):
    for variable in VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    monkeypatch.setattr(patch_arg_utils, "running_release", lambda: find_release("0.33.0"))
    vllm_config = SimpleNamespace(
        model_config=None,
        cache_config=SimpleNamespace(prefix_cache_retention_interval=None),
        kv_transfer_config=None,
        speculative_config=None,
    )
    create = patch_arg_utils.wrap_create_engine_config.around(lambda self: vllm_config)
    assert create(SimpleNamespace(speculative_config=None)) is vllm_config


def test_without_drafts_there_is_nothing_to_keep():
    keep_last_block(None, load_config(BEST))


@pytest.mark.parametrize("environment", [DSV4, BEST])
def test_a_release_without_dspark_says_which_has_it(environment):
    drafts = {"method": "dspark", "num_speculative_tokens": 7}
    with pytest.raises(ValueError, match=r"has no DSpark: use vLLM 0\.30\.0"):
        check_method(drafts, load_config(environment), WITHOUT_DSPARK)
    check_method(drafts, load_config(environment), WITH_DSPARK)


@pytest.mark.parametrize("drafts", [None, {}, {"method": "mtp"}, {"model": "somewhere"}])
def test_other_drafts_are_vllms_matter(drafts):
    check_method(drafts, load_config(BEST), WITHOUT_DSPARK)


def test_with_nothing_set_vllm_answers_itself():
    check_method({"method": "dspark"}, load_config({}), WITHOUT_DSPARK)


@pytest.mark.parametrize(
    ("role", "method", "fields", "is_told"),
    [
        ("kv_producer", None, {"dspark_block_size": 7}, True),
        ("kv_producer", "mtp", {"dspark_block_size": 7}, True),
        ("kv_producer", "dspark", {"dspark_block_size": 7}, False),
        ("kv_producer", None, {}, False),  # a checkpoint without DSpark layers
        ("kv_producer", None, {"dspark_block_size": 7, "model_type": "qwen3"}, False),
        ("kv_consumer", None, {"dspark_block_size": 7}, False),
        ("kv_both", None, {"dspark_block_size": 7}, False),
        (None, None, {"dspark_block_size": 7}, False),
    ],
)
def test_a_prefill_side_that_does_not_draft_is_told(role, method, fields, is_told):
    vllm_config: Any = SimpleNamespace(
        model_config=SimpleNamespace(
            hf_text_config=SimpleNamespace(**{"model_type": "deepseek_v4"} | fields)
        ),
        speculative_config=method and SimpleNamespace(method=method),
        kv_transfer_config=role and KVTransferConfig(kv_connector="any", kv_role=role),
    )
    warning = prefill_without_drafts(vllm_config, load_config(BEST))
    assert (warning is not None) is is_told
    assert warning is None or "same --speculative-config" in warning
    assert prefill_without_drafts(vllm_config, load_config({})) is None
