# SPDX-License-Identifier: Apache-2.0
"""A tokenizer that cannot be used is named with its option, before anything is sent."""

import pytest

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.models.tiny.tokenizer import train_tokenizer
from vllm_ascend_evaluation.regress.tokenizer import find_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a tokenizer."""
    made = tmp_path_factory.mktemp("model")
    train_tokenizer(1024).save_pretrained(made)
    return made


@pytest.mark.parametrize("tool", ["vllm", "ais_bench"])
def test_a_folder_is_taken_as_tools_find_it_from_anywhere(folder, tool, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert find_tokenizer(folder.name, "/none", tool=tool) == str(folder)
    assert find_tokenizer(None, folder.name, tool=tool) == str(folder)


@pytest.mark.parametrize("tool", ["vllm", "ais_bench"])
@pytest.mark.parametrize(
    ("given", "root", "what"),
    [
        ("/no/where", "/m", r"^--tokenizer /no/where: .* a folder on this machine"),
        (None, "/no/where", r"^--tokenizer /no/where, which the server was started with: "),
        (".", "/m", r"^--tokenizer \.: holds no tokenizer, none of tokenizer\.json"),
    ],
)
def test_a_folder_that_is_none_is_named(tmp_path, monkeypatch, tool, given, root, what):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInputError, match=what):
        find_tokenizer(given, root, tool=tool)


def test_ais_bench_takes_no_repository():
    with pytest.raises(BadInputError, match="--tokenizer org/model: ais_bench needs a folder"):
        find_tokenizer("org/model", "/m", tool="ais_bench")


def test_what_cannot_be_loaded_is_one_line(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(BadInputError, match=r"^--tokenizer .*: cannot be loaded \(.*\)$") as caught:
        find_tokenizer(str(tmp_path), "/m", tool="vllm")
    assert "\n" not in str(caught.value)


def test_a_repository_that_is_not_downloaded_is_not_waited_for():
    with pytest.raises(BadInputError, match=r"^--tokenizer org/model: .* hf download org/model"):
        find_tokenizer("org/model", "/m", tool="vllm")
