# SPDX-License-Identifier: Apache-2.0
"""Requests as logs and data sets have them: text or ids, not yet what is replayed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
# Of records that do not say how long the answer is: what the report says, what an error asks for.
AS_THE_OPTION = "answers as long as --max-output-tokens"
GIVE_THE_OPTION = "give --max-output-tokens"


@dataclass(frozen=True)
class Chat:
    """A prompt that a chat template makes of messages.

    Attributes:
        messages: Each with ``role`` and ``content``, the latter a text.
        tools: As the request offered them; ``None`` without any.
    """

    messages: tuple[Message, ...]
    tools: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class Cap:
    """The longest that an answer could become, where nothing says how long it was."""

    tokens: int


@dataclass(frozen=True)
class LoggedRequest:
    """One request.

    Attributes:
        place: Where it stands, for errors: ``FILE, line N``.
        prompt: Token ids, a text, or messages.
        answer: Tokens of the answer, its text, or the most that it could have; ``None`` if nothing
            says any of that.
        time_ms: When it was sent, in milliseconds since any moment; ``None`` if nothing says so.
        session: Its conversation; ``None`` if it belongs to none.
        think_ms: Time from the answer before it in its conversation; 0 if it only must not come
            before that answer, ``None`` if it waits for none.
    """

    place: str
    prompt: list[int] | str | Chat
    answer: int | str | Cap | None
    time_ms: float | None = None
    session: str | None = None
    think_ms: float | None = None
