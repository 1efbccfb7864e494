# SPDX-License-Identifier: Apache-2.0
"""A model's tokenizer, from a folder: texts and messages become the token ids of prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.readers.logged import Chat, Message


class Tokenizer:
    """Hugging Face's tokenizer of a folder; nothing is fetched from anywhere.

    Attributes:
        has_chat_template: Whether messages become a prompt as the model wants it. Without a
            template they stand one behind the other, each with its role.
    """

    def __init__(self, folder: Path) -> None:
        """Read the folder.

        Raises:
            BadInputError: There is none, or no tokenizer in it.
        """
        if not folder.is_dir():
            raise BadInputError(f"--tokenizer {folder}: expected a folder with a tokenizer")
        # Here, not above: it takes seconds, and most workloads hold no text.
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # whatever it meets in the folder
            reason = " ".join(str(error).split()) or type(error).__name__
            raise BadInputError(f"--tokenizer {folder}: cannot be used ({reason})") from error
        # Longer prompts are left out later, and counted; until then each would be warned about.
        self._tokenizer.model_max_length = 1 << 62
        self.has_chat_template = bool(getattr(self._tokenizer, "chat_template", None))

    def of_text(self, text: str) -> list[int]:
        """Return the ids of a prompt, as a completion gets them."""
        return list(self._tokenizer.encode(text))

    def count(self, text: str) -> int:
        """Return how many tokens an answer has."""
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def of_chat(self, chat: Chat, place: str) -> list[int]:
        """Return the ids of the prompt that asks for the next answer.

        Args:
            chat: The messages so far.
            place: For errors.

        Raises:
            BadInputError: The model's template does not take these messages.
        """
        if not self.has_chat_template:
            turns = (f"{message['role']}: {message['content']}\n" for message in chat.messages)
            return self.of_text("".join(turns) + "assistant:")
        try:
            text = self._tokenizer.apply_chat_template(
                [*map(_with_arguments, chat.messages)],
                tools=None if chat.tools is None else list(chat.tools),
                add_generation_prompt=True,
                tokenize=False,
            )
        except Exception as error:  # a template is a program of the model's makers
            reason = " ".join(str(error).split()) or type(error).__name__
            raise BadInputError(f"{place}: the model's chat template fails ({reason})") from error
        # The template itself has said which special tokens there are.
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def _with_arguments(message: Message) -> Message:
    """Return a message with the arguments of its calls as objects: templates expect no texts."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [*map(_call, calls)]}


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
    except ValueError:
        return call
