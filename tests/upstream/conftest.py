# SPDX-License-Identifier: Apache-2.0
"""Copies of vllm-ascend for the tests that start processes over them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upstream.npu_reference.releases import RELEASES
from tests.upstream.sources import (
    checkout_here,
    copy_python,
    named_checkout,
    put_overlay,
    release_here,
)

collect_ignore = []
# The reference operators are those that the code of these releases calls.
if release_here() not in RELEASES:
    collect_ignore += ["npu_reference", "real_runs"]


def pytest_configure() -> None:
    """Say in one sentence, before any test, what is wrong with the checkout that is named."""
    try:
        named_checkout()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of vllm-ascend as it is."""
    return copy_python(checkout_here(), tmp_path_factory.mktemp("plain") / "vllm-ascend")


@pytest.fixture(scope="session")
def overlaid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with the overlay in force."""
    copy = tmp_path_factory.mktemp("overlaid") / "vllm-ascend"
    return put_overlay(copy_python(checkout_here(), copy))
