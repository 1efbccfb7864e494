# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from types import SimpleNamespace

import pytest

from vllm_ascend.core.retention import interval_option
from vllm_ascend.core.retention.interval_option import agreed_interval
from vllm_ascend.prefix_cache_config import load_config
from vllm_ascend.releases import SUPPORTED

RETENTION = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
PROFILE = "VLLM_ASCEND_PREFIX_CACHE_PROFILE"


@pytest.fixture(autouse=True)
def _with_the_option(monkeypatch):
    """The newest release has the option; reading it needs nothing of that release."""
    monkeypatch.setattr(interval_option, "running_release", lambda: SUPPORTED[-1])


def agreed(option: int, **environment: str) -> int | None:
    cache_config = SimpleNamespace(prefix_cache_retention_interval=option)
    return agreed_interval(cache_config, load_config(environment))


@pytest.mark.parametrize("environment", ({}, {RETENTION: "4096"}, {PROFILE: "best"}))
def test_without_the_option_there_is_nothing_to_agree_on(environment):
    assert agreed(0, **environment) is None


@pytest.mark.parametrize("environment", ({}, {RETENTION: "4096"}, {PROFILE: "best"}))
def test_the_option_holds_beside_nothing_the_same_number_or_a_profile(environment):
    assert agreed(4096, **environment) == 4096


@pytest.mark.parametrize("value", ("0", "auto", "8192"))
@pytest.mark.parametrize("profile", ({}, {PROFILE: "best"}))
def test_a_variable_that_says_otherwise_is_refused_with_both_names(value, profile):
    with pytest.raises(ValueError, match=rf"{RETENTION}='?{value}'? contradicts .*-interval 4096"):
        agreed(4096, **{RETENTION: value}, **profile)


def test_releases_without_the_option_never_have_one(monkeypatch):
    monkeypatch.setattr(interval_option, "running_release", lambda: SUPPORTED[0])
    assert agreed(4096, **{RETENTION: "8192"}) is None
