# SPDX-License-Identifier: Apache-2.0
"""Other weights, another configuration: another name, without a whole read of any file."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from vllm_ascend.kv_transfer import weights_fingerprint
from vllm_ascend.kv_transfer.weights_fingerprint import NoWeightsError, fingerprint

NUM_EXPERTS = 40


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a folder with two shards: experts beside a few small tensors, as real ones have."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"rope_theta": 10000}))
    (folder / "tokenizer.json").write_text("{}")
    torch.manual_seed(0)
    for shard in range(2):
        tensors = {f"layers.{shard}.experts.{i}.w": torch.randn(64, 64) for i in range(NUM_EXPERTS)}
        tensors[f"layers.{shard}.attention.q"] = torch.randn(16, 16)
        tensors[f"layers.{shard}.norm"] = torch.randn(16)
        save_file(tensors, folder / f"model-{shard}.safetensors")
    return folder


def test_a_copy_at_another_path_has_the_same_name(model, tmp_path):
    copy = tmp_path / "elsewhere" / "other-name"
    shutil.copytree(model, copy)
    os.utime(copy / "model-0.safetensors", (0, 0))
    assert fingerprint(copy) == fingerprint(model)


@pytest.mark.parametrize("name", ["layers.1.attention.q", "layers.1.norm", "layers.1.experts.7.w"])
def test_a_tensor_that_was_tuned_changes_the_name(model, name):
    """Also the smallest one: most bytes of a large model are its experts'."""
    before = fingerprint(model)
    shard = model / "model-1.safetensors"
    tensors = load_file(shard)
    save_file({**tensors, name: tensors[name] + 1e-3}, shard)
    assert fingerprint(model) != before


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "config.json").write_text(json.dumps({"rope_theta": 10001})),
        lambda folder: (folder / "quant_model_description.json").write_text('{"w": "W8A8"}'),
        lambda folder: (folder / "modeling.py").write_text("x = 1"),
        lambda folder: (folder / "model-1.safetensors").unlink(),
        lambda folder: (folder / "model-1.safetensors").rename(folder / "model-2.safetensors"),
        lambda folder: (folder / "extra.bin").write_bytes(b"1"),
    ],
)
def test_what_changes_rows_changes_the_name(model, change):
    before = fingerprint(model)
    change(model)
    assert fingerprint(model) != before


def test_what_no_row_depends_on_does_not(model):
    before = fingerprint(model)
    (model / "tokenizer.json").write_text('{"version": 2}')
    (model / "generation_config.json").write_text('{"temperature": 0.6}')
    (model / "README.md").write_text("words")
    assert fingerprint(model) == before


@pytest.mark.parametrize("suffix", [".bin", ".gguf", ".safetensors"])
def test_files_without_a_header_are_sampled_over_their_whole_length(tmp_path, suffix):
    file = tmp_path / f"weights{suffix}"
    content = bytearray(b"\xff" * 60_000)
    file.write_bytes(content)
    names = {fingerprint(file)}
    for place in (0, 8, 30_000, 59_999):
        changed = bytearray(content)
        changed[place] ^= 1
        file.write_bytes(changed)
        names.add(fingerprint(file))
    file.write_bytes(content + b"\xff")
    assert len({*names, fingerprint(file)}) == 6


def test_no_file_with_weights_is_read_whole(tmp_path, monkeypatch):
    """A file of a TiB on a sparse disk is named at once."""
    file = tmp_path / "huge.bin"
    with file.open("wb") as opened:
        opened.truncate(1 << 40)
    num_bytes = 0
    read = os.pread

    def counted(descriptor: int, length: int, place: int) -> bytes:
        nonlocal num_bytes
        num_bytes += length
        return read(descriptor, length, place)

    monkeypatch.setattr(weights_fingerprint.os, "pread", counted)
    fingerprint(tmp_path)
    assert 0 < num_bytes < 1 << 20


def test_many_tensors_of_one_kind_are_sampled_in_part(model, monkeypatch):
    places: list[int] = []
    monkeypatch.setattr(weights_fingerprint, "_SAMPLES_PER_CLASS", 5)
    monkeypatch.setattr(
        weights_fingerprint.os,
        "pread",
        lambda d, n, p, read=os.pread: places.append(p) or read(d, n, p),
    )
    fingerprint(model)
    # Of each file: the header in two reads, five experts and two other tensors.
    assert len(places) == 2 * (2 + 5 + 2)


def test_a_folder_without_weights_has_no_name(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(NoWeightsError, match="has no files with weights"):
        fingerprint(tmp_path)
