# SPDX-License-Identifier: Apache-2.0
"""The tiny model: the same for the same seed, readable by Hugging Face and vLLM, never lost."""

from __future__ import annotations

import json
import subprocess
import sys
from unittest.mock import Mock

import pytest
import torch
from transformers import DeepseekV4ForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from vllm_ascend.__main__ import app
from vllm_ascend_evaluation.models.tiny import maker
from vllm_ascend_evaluation.models.tiny.maker import VOCAB_SIZE, make_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tiny") / "new" / "model"
    make_tiny_model(made)
    return made


def weights(folder) -> dict[str, torch.Tensor]:
    return DeepseekV4ForCausalLM.from_pretrained(folder).state_dict()


def test_a_seed_names_a_model(folder, tmp_path):
    make_tiny_model(tmp_path / "again")
    make_tiny_model(tmp_path / "other", seed=1)
    mine, again, other = map(weights, (folder, tmp_path / "again", tmp_path / "other"))
    assert all(torch.equal(mine[name], again[name]) for name in mine)
    assert not torch.equal(mine["lm_head.weight"], other["lm_head.weight"])


def test_nothing_is_left_at_zero(folder):
    """A weight of zero would hide that a wrong one is read."""
    zero = [name for name, tensor in weights(folder).items() if not tensor.any()]
    assert not zero


def test_it_has_every_kind_of_layer(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["compress_ratios"] == [0, 4, 128] * 2
    assert "layer_types" not in config  # vLLM refuses it; transformers derives it
    model = DeepseekV4ForCausalLM.from_pretrained(folder)
    assert model.config.layer_types.count("compressed_sparse_attention") == 2
    assert model.config.mlp_layer_types[0] == "hash_moe"


def test_the_tokenizer_returns_what_it_was_given(folder):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    assert len(tokenizer) <= VOCAB_SIZE
    for text in ("a prefix cache", "ünïcödé ✓ 你好", "tabs\tand\nlines", ""):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == text
    assert tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id == 0


def test_a_chat_begins_as_it_went_on(folder):
    """The prompt of a turn begins with the prompt and the answer of the turn before."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]

    def prompt() -> str:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    first = prompt()
    messages += [{"role": "assistant", "content": "Hi."}, {"role": "user", "content": "Why?"}]
    assert prompt().startswith(first + "Hi." + tokenizer.eos_token)


def test_the_template_is_what_vllm_renders(folder):
    from vllm.tokenizers.deepseek_v4 import DeepseekV4Tokenizer

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Why?"},
    ]
    ours = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    theirs = DeepseekV4Tokenizer.from_pretrained(folder).apply_chat_template(
        messages, tokenize=False
    )
    assert ours == theirs


def test_a_model_is_not_overwritten(folder):
    before = (folder / "model.safetensors").read_bytes()
    result = CliRunner().invoke(app, ["tiny-model", str(folder), "--seed", "3"])
    assert result.exit_code == 2
    assert "holds a model already" in result.output
    assert (folder / "model.safetensors").read_bytes() == before


def test_that_a_model_is_there_is_told_before_torch_is_imported(folder):
    script = (
        "import sys\nfrom vllm_ascend.__main__ import main\n"
        f"sys.argv = ['vllm_ascend', 'tiny-model', {str(folder)!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    print(end.code, 'torch' in sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.stdout == "2 False\n"
    assert ended.stderr == f"error: {folder} holds a model already: name another folder\n"


def test_an_interrupted_model_is_made_anew(tmp_path, monkeypatch):
    """A folder with a config.json and half of the files would be served, and fail."""
    with monkeypatch.context() as patch:
        patch.setattr(maker, "save_file", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            make_tiny_model(tmp_path)
    assert not list(tmp_path.iterdir())
    make_tiny_model(tmp_path)
    assert {"config.json", "mtp.safetensors", "tokenizer.json"} <= {
        file.name for file in tmp_path.iterdir()
    }


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["tiny-model", str(tmp_path / "file")])
    assert result.exit_code == 2
    assert result.output == f"error: DIR {tmp_path / 'file'}: is not a folder\n"


def test_the_command(tmp_path):
    result = CliRunner().invoke(app, ["tiny-model", str(tmp_path / "model")])
    assert result.exit_code == 0
    assert "written:" in result.output
