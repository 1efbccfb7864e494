# SPDX-License-Identifier: Apache-2.0
"""A tokenizer in a folder, with and without a chat template."""

import pytest

from vllm_ascend_evaluation.models.tiny.tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """Return the folder of a tokenizer that has a chat template."""
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(1024).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def plain_tokenizer(tmp_path_factory):
    """Return the folder of one that has none."""
    folder = tmp_path_factory.mktemp("plain")
    made = train_tokenizer(1024)
    made.chat_template = None
    made.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def hugging_face(tokenizer):
    """Return Hugging Face's own object for it, to count by."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
