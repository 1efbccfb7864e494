# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.release_marks import with_our_interval
from vllm_ascend.core.retention.interval_option import agreed_interval
from vllm_ascend.prefix_cache_config import load_config
from vllm_ascend.releases import SUPPORTED, Release

RETENTION = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
PROFILE = "VLLM_ASCEND_PREFIX_CACHE_PROFILE"


NEWEST = SUPPORTED[-1]  # has the option; reading it needs nothing of that release


def agreed(option: int, release: Release = NEWEST, **environment: str) -> int | None:
    cache_config = SimpleNamespace(prefix_cache_retention_interval=option)
    config = load_config(with_our_interval(environment))
    return agreed_interval(release.retention_option(cache_config), config)


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


def test_releases_without_the_option_never_have_one():
    assert agreed(4096, SUPPORTED[0], **{RETENTION: "8192"}) is None
