# SPDX-License-Identifier: Apache-2.0
"""The doctor's words about a tier below the device's KV cache."""

from __future__ import annotations

import socket
import sys

import pytest

from tests.ut.doctor.test_layout import APPLY, BEST, DSV4, LLAMA, layout
from vllm_ascend.doctor import tier
from vllm_ascend.tier import mooncake

__all__ = ["layout"]


def told(backend: str, **extra) -> dict:
    return {
        "kv_connector": "GranuleTierConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"backend": backend, **extra},
    }


@pytest.fixture
def warnings(layout):
    """Return a function that lists the warnings that name the tier."""

    def ask(transfer: dict) -> list[str]:
        facts = layout(DSV4, {APPLY: "1", **BEST}, block_size=128, kv_transfer_config=transfer)
        assert facts.smallest_prefix == 128
        return [warning for warning in facts.warnings if "tier" in warning]

    return ask


def test_memory_that_is_there_is_right(warnings):
    assert not warnings(told("host", gib=0.1))


def test_more_memory_than_is_available_is_a_warning(warnings, monkeypatch):
    monkeypatch.setattr(tier, "_available_bytes", lambda: 40 << 30)
    (warning,) = warnings(told("host", gib=256))
    assert warning.startswith('the tier\'s "gib": 256 is more than the 40 GiB')


def test_a_disk_that_is_there_is_right_and_what_it_lacks_is_a_warning(
    warnings, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    path = str(tmp_path)
    assert not warnings(told("host", gib=0.1, disk={"path": path, "gib": 0.1}))
    (warning,) = warnings(told("host", gib=0.1, disk={"path": f"{path}/x", "gib": 1}))
    assert warning == f'the tier\'s "disk": {path}/x is no folder here'
    (warning,) = warnings(told("host", gib=0.1, disk={"path": path, "gib": 1e9}))
    assert warning.startswith('the tier\'s "disk": 1e+09 GiB are more than the ')
    monkeypatch.delenv("PYTHONHASHSEED")
    (warning,) = warnings(told("host", gib=0.1, disk={"path": path, "gib": 0.1}))
    assert warning.startswith('the tier\'s "disk" needs PYTHONHASHSEED: without it an engine does')


@pytest.mark.parametrize(
    ("transfer", "message"),
    [
        (told("host"), '"gib" is needed by backend host'),
        (told("disk"), '"backend": "disk" is invalid: allowed are host and mooncake'),
        (told("host", gib=0.00001), '"gib" is too small'),
        (told("host", gib=1, staging_mib=0.01), '"staging_mib": 0.01 is too small'),
        (told("mooncake", mooncake={"master_server_address": "nowhere"}), "allowed are HOST:PORT"),
    ],
)
def test_settings_with_which_no_engine_starts_are_a_conflict(warnings, transfer, message):
    with pytest.raises(ValueError, match=message):
        warnings(transfer)


@pytest.mark.parametrize("name", ["AscendStoreConnector", "MooncakeConnectorStoreV1"])
def test_whoever_has_ascend_store_is_told_the_tiers_configuration(warnings, name):
    with pytest.raises(
        ValueError, match=f"{name} cannot be used .* the tier takes its place"
    ) as at:
        warnings({"kv_connector": name, "kv_role": "kv_both"})
    assert str(at.value).endswith('"kv_connector_extra_config": {"backend": "mooncake"}}')


def test_with_a_connector_the_weights_are_told(layout, tmp_path):
    def told_weights() -> str | None:
        connector = told("host", gib=0.1)
        environ = {APPLY: "1", **BEST}
        return layout(DSV4, environ, block_size=128, kv_transfer_config=connector).weights

    assert told_weights() is None, "it has no weights"
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    before = told_weights()
    (tmp_path / "model.safetensors").write_bytes(b"tuned..")
    assert before and told_weights() not in (None, before)


def test_a_master_that_answers_is_right_and_one_that_does_not_is_a_warning(warnings, monkeypatch):
    monkeypatch.setattr(mooncake, "store_class", object)
    with socket.create_server(("127.0.0.1", 0)) as master:
        address = f"127.0.0.1:{master.getsockname()[1]}"
        transfer = told("mooncake", mooncake={"master_server_address": address})
        assert not warnings(transfer)
    (warning,) = warnings(transfer)
    assert warning.startswith(f"the tier's Mooncake master does not answer at {address}")


@pytest.fixture
def warning_of_import(warnings, tmp_path, monkeypatch):
    """Return a function that returns the one warning with some package in Mooncake's place."""

    def ask(store: str | None) -> str:
        for name in ("mooncake", "mooncake.store"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        if store is None:
            monkeypatch.setitem(sys.modules, "mooncake", None)
        else:
            package = tmp_path / "mooncake"
            package.mkdir()
            (package / "__init__.py").touch()
            (package / "store.py").write_text(store)
            monkeypatch.syspath_prepend(tmp_path)
        with socket.create_server(("127.0.0.1", 0)) as master:
            address = f"127.0.0.1:{master.getsockname()[1]}"
            (warning,) = warnings(told("mooncake", mooncake={"master_server_address": address}))
        return warning

    return ask


def test_a_missing_package_of_mooncakes_is_a_warning(warning_of_import):
    assert "needs Mooncake's Python package, which is not installed here" in warning_of_import(None)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (
            "libibverbs.so.1: cannot open shared object file: No such file or directory",
            "the system library libibverbs.so.1 is missing",
        ),
        ("/lib/store.so: undefined symbol: x", "/lib/store.so: undefined symbol: x"),
    ],
)
def test_a_package_of_mooncakes_that_cannot_be_imported_is_a_warning(
    warning_of_import, error, cause
):
    warning = warning_of_import(f"raise ImportError({error!r})")
    said = "the tier's backend mooncake cannot import Mooncake's Python package"
    assert warning == f"{said}: {cause}"


def test_of_several_connectors_the_tier_is_found(layout, monkeypatch):
    """Of a model for which vLLM 0.20.2's MultiConnector can be used, too."""
    monkeypatch.setattr(tier, "_available_bytes", lambda: 1 << 30)
    several = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [told("host", gib=2)]},
    }
    facts = layout(LLAMA, {}, kv_transfer_config=several)
    assert sum("tier" in warning for warning in facts.warnings) == 1
