# SPDX-License-Identifier: Apache-2.0
"""A checkout that is named: one that cannot be run over is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upstream.sources import VARIABLE, checkout_here, named_checkout


@pytest.fixture
def named(tmp_path, monkeypatch) -> Path:
    """A folder that is named and has what is read of a checkout; its code is of no known one."""
    root = tmp_path / "vllm-ascend"
    for name in ("vllm_ascend/platform.py", "csrc/torch_binding.cpp", "setup.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "tests" / "ut").mkdir(parents=True)
    monkeypatch.setenv(VARIABLE, str(root))
    return root


def test_the_one_that_is_named_is_taken(named):
    assert named_checkout() == checkout_here() == named


@pytest.mark.parametrize("value", ["", None])
def test_without_a_name_there_is_none(named, monkeypatch, value):
    monkeypatch.delenv(VARIABLE)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    assert named_checkout() is None


@pytest.mark.parametrize("name", ["vllm_ascend/platform.py", "csrc/torch_binding.cpp", "setup.py"])
def test_another_folder_is_refused(named, name):
    (named / name).unlink()
    with pytest.raises(ValueError, match=f"{VARIABLE}={named} is not a checkout .*: no {name}$"):
        checkout_here()


def test_an_overlaid_one_is_refused(named):
    (named / ".vllm-ascend-backport").mkdir()
    with pytest.raises(ValueError, match=f"{VARIABLE}={named} is overlaid: "):
        checkout_here()


def test_one_for_another_vllm_is_refused(named):
    (named / "PKG-INFO").write_text("Version: 0.9.1rc3\n")
    with pytest.raises(
        ValueError, match=r"is vllm-ascend 0\.9\.1rc3 for .*; vLLM .* is installed$"
    ):
        checkout_here()
