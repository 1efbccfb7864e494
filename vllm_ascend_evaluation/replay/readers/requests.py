# SPDX-License-Identifier: Apache-2.0
"""Token ids; requests to the OpenAI API, as gateways and batch files have them; ShareGPT."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.readers.clock_times import time_of
from vllm_ascend_evaluation.replay.readers.documents import read_documents
from vllm_ascend_evaluation.replay.readers.jsonl import integer, integers
from vllm_ascend_evaluation.replay.readers.logged import Cap, Chat, LoggedRequest, Message
from vllm_ascend_evaluation.replay.readers.messages import ASSISTANT, messages_of, turns_of

# The largest id that the token store holds.
MAX_TOKEN_ID = 2**31 - 1
_SESSIONS = ("session", "session_id", "conversation_id")
_FORMATS = (
    "prompt_token_ids, prompt, messages (OpenAI's), conversations (ShareGPT's), each perhaps in a "
    "body or request; or hash_ids (Mooncake's) from the first record on"
)
_ENDPOINTS = ("/completions", "/chat/completions")


def read_requests(path: Path, left_out: Counter[str]) -> Iterator[LoggedRequest]:
    """Yield the requests of a file of JSON lines, or of an array.

    Args:
        path: The file.
        left_out: Counts records without a request, by what they are.

    Raises:
        BadInputError: Names the file, the line and what is wrong.
    """
    seen: set[str] = set()
    for number, (place, record) in enumerate(read_documents(path)):
        # Not the place: a whole array may stand on one line.
        found = list(requests_of(record, place, f"record {number}"))
        if not found:
            left_out["conversations without an answer"] += 1
        for request in found:
            # Of requests that were logged one by one, a later one of a session waits as well.
            if request.session in seen and request.think_ms is None:
                request = _behind(request, 0.0)
            if request.session is not None:
                seen.add(request.session)
            yield request


def _behind(request: LoggedRequest, think_ms: float) -> LoggedRequest:
    return LoggedRequest(**{**vars(request), "think_ms": think_ms})


def _body_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body of a request: of a batch file's line, of a logged pair, or the record."""
    for name in ("body", "request"):
        if isinstance(record.get(name), dict):
            return record[name]
    return record


def requests_of(record: Mapping[str, Any], place: str, name: str) -> Iterator[LoggedRequest]:
    """Yield what a record asks for.

    Args:
        record: One of a file.
        place: For errors.
        name: Of its conversation, if the record itself has none for it.

    Raises:
        BadInputError: Names the place and what is wrong.
    """
    body = _body_of(record)
    endpoint = record.get("url", _ENDPOINTS[0])
    if not isinstance(endpoint, str) or not endpoint.endswith(_ENDPOINTS):
        raise BadInputError(
            f"{place}: url is {endpoint!r}, expected one of {', '.join(_ENDPOINTS)}"
        )
    # What stands beside the request comes before what stands within.
    told = {**body, **{name: value for name, value in record.items() if value is not None}}
    session = next((str(told[name]) for name in _SESSIONS if told.get(name) is not None), None)
    if body.get("prompt_token_ids") is not None:
        ids = integers(dict(body), "prompt_token_ids", place, maximum=MAX_TOKEN_ID)
        yield _single(told, ids, session, place)
    elif "conversations" in body:
        messages = messages_of(body["conversations"], "conversations", place)
        yield from turns_of(messages, session or name, place, begun_ms=time_of(told, place))
    elif "messages" in body:
        messages = messages_of(body["messages"], "messages", place)
        yield from _of_messages(told, messages, session, place, name)
    elif "prompt" in body:
        for prompt in _prompts(body, place):
            yield _single(told, prompt, session, place)
    else:
        raise BadInputError(f"{place}: in no known format; known are {_FORMATS}")


def _of_messages(
    told: Mapping[str, Any],
    messages: list[Message],
    session: str | None,
    place: str,
    name: str,
) -> Iterator[LoggedRequest]:
    tools = told.get("tools")
    offered = tuple(tools) if isinstance(tools, list) and tools else None
    if messages[-1]["role"] == ASSISTANT:  # a whole conversation, as for training
        begun_ms = time_of(told, place)
        yield from turns_of(messages, session or name, place, offered, begun_ms=begun_ms)
    else:
        yield _single(told, Chat(tuple(messages), offered), session, place)


def _single(
    told: Mapping[str, Any],
    prompt: list[int] | str | Chat,
    session: str | None,
    place: str,
) -> LoggedRequest:
    delay = None
    if told.get("delay") is not None:
        if session is None:
            raise BadInputError(f"{place}: delay means nothing without a session")
        delay = float(integer(dict(told), "delay", place, minimum=0))
    return LoggedRequest(
        place=place,
        prompt=prompt,
        answer=_answer(told, place),
        time_ms=time_of(told, place),
        session=session,
        think_ms=delay,
    )


def _prompts(body: Mapping[str, Any], place: str) -> list[list[int] | str]:
    """Return the prompts of a completion: one, or a list of them."""
    value = body["prompt"]
    if isinstance(value, str):
        return [value]
    is_list_of_prompts = isinstance(value, list) and value and isinstance(value[0], str | list)
    entries = value if is_list_of_prompts else [value]
    return [
        entry
        if isinstance(entry, str)
        else integers({"prompt": entry}, "prompt", place, maximum=MAX_TOKEN_ID)
        for entry in entries
    ]


def _answer(told: Mapping[str, Any], place: str) -> int | Cap | None:
    """Return how long the answer was, or else the most that it could be."""
    usage = _usage(told)
    if usage is not None:
        return integer(usage, "completion_tokens", place, minimum=0)
    if told.get("output_length") is not None:
        return integer(dict(told), "output_length", place, minimum=0)
    for name in ("max_completion_tokens", "max_tokens"):
        if told.get(name) is not None:
            return Cap(integer(dict(told), name, place, minimum=1))
    return None


def _usage(record: Mapping[str, Any]) -> dict[str, Any] | None:
    response = record.get("response")
    places = [record, response, response.get("body") if isinstance(response, dict) else None]
    for holder in places:
        usage = holder.get("usage") if isinstance(holder, Mapping) else None
        if isinstance(usage, dict) and usage.get("completion_tokens") is not None:
            return usage
    return None
