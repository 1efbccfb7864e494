# SPDX-License-Identifier: Apache-2.0
"""A byte-pair tokenizer with DeepSeek-V4's special tokens, trained on the text beside this file."""

from __future__ import annotations

from importlib.resources import files

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

_BOS = "<｜begin▁of▁sentence｜>"
_EOS = "<｜end▁of▁sentence｜>"
_PAD = "<｜▁pad▁｜>"
_SPECIAL_TOKENS = (_BOS, _EOS, _PAD, "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>")


def train_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer of at most ``vocab_size`` tokens; the same every time.

    It knows every byte, so that no text is unknown to it. vLLM's ``deepseek_v4`` tokenizer mode
    and the chat template that it carries render chats alike.
    """
    folder = files(__package__)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(_SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = folder.joinpath("corpus.txt").read_text(encoding="utf-8")
    tokenizer.train_from_iterator(corpus.splitlines(keepends=True), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_BOS} $A", special_tokens=[(_BOS, tokenizer.token_to_id(_BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=_BOS,
        eos_token=_EOS,
        pad_token=_PAD,
        chat_template=folder.joinpath("chat_template.jinja")
        .read_text(encoding="utf-8")
        .rstrip("\n"),
    )
