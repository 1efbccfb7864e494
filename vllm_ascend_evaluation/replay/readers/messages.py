# SPDX-License-Identifier: Apache-2.0
"""Messages of a chat: ShareGPT's and OpenAI's spelling, and what was asked in a conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.readers.clock_times import time_of
from vllm_ascend_evaluation.replay.readers.logged import Chat, LoggedRequest, Message

ASSISTANT = "assistant"
# ShareGPT's names of roles -> OpenAI's; others stay as they are.
_ROLES = {
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bot", "bing", "bard", "model"), ASSISTANT),
    **dict.fromkeys(("function", "observation", "function_response"), "tool"),
}


def messages_of(value: Any, name: str, place: str) -> list[Message]:
    """Return messages in OpenAI's spelling, with texts as their contents.

    Args:
        value: Messages with ``role`` and ``content``, or with ``from`` and ``value``.
        name: Of the field that holds them, for errors.
        place: For errors.

    Raises:
        BadInputError: They are not messages, or one has something else than text.
    """
    if not isinstance(value, list) or not value:
        raise BadInputError(f"{place}: {name} must be a non-empty list of messages")
    return [_message(entry, f"{place}: {name}[{number}]") for number, entry in enumerate(value)]


def _message(entry: Any, what: str) -> Message:
    role = entry.get("role", entry.get("from")) if isinstance(entry, dict) else None
    if not isinstance(role, str):
        raise BadInputError(f"{what}: expected a message with role and content, or from and value")
    content = _text(entry.get("content", entry.get("value")), what)
    kept = {key: value for key, value in entry.items() if key not in ("from", "value")}
    return {**kept, "role": _ROLES.get(role, role), "content": content}


def _text(content: Any, what: str) -> str:
    if content is None:
        return ""  # an answer that only calls tools
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    return "".join(_text_of_part(part, what) for part in parts)


def _text_of_part(part: Any, what: str) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    if isinstance(text, str):
        return text
    kind = part.get("type", "?") if isinstance(part, dict) else type(part).__name__
    raise BadInputError(f"{what}: content of type {kind}: text alone can be tokenized")


def turns_of(
    messages: Sequence[Message],
    session: str,
    place: str,
    tools: tuple[Any, ...] | None = None,
    *,
    begun_ms: float | None,
) -> Iterator[LoggedRequest]:
    """Yield a request for every answer in a conversation, with all messages before it as prompt.

    Args:
        messages: See :func:`messages_of`.
        session: Names the conversation.
        place: For errors.
        tools: As the requests offered them.
        begun_ms: When the conversation began, if that is known.
    """
    num_turns = 0
    for number, message in enumerate(messages):
        before = messages[:number]
        # Not what an assistant says by itself, or goes on with.
        if (
            message["role"] != ASSISTANT
            or not before
            or before[-1]["role"] in (ASSISTANT, "system")
        ):
            continue
        sent_ms = time_of(before[-1], place)
        yield LoggedRequest(
            place=place,
            prompt=Chat(tuple(before), tools),
            answer=message["content"] + _calls(message),
            time_ms=begun_ms if sent_ms is None and not num_turns else sent_ms,
            session=session,
            think_ms=0.0 if num_turns else None,
        )
        num_turns += 1


def _calls(message: Message) -> str:
    """Return the text of an answer's calls of tools, about as long as what the model said."""
    calls = message.get("tool_calls")
    functions = [call.get("function") for call in calls or () if isinstance(call, dict)]
    return "".join(str(function) for function in functions)
