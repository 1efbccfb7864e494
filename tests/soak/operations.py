# SPDX-License-Identifier: Apache-2.0
"""What happens to an engine, as plain data: requests, steps, aborts, resets, sleep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, get_args

STREAM, IMAGE, ANSWER = "stream", "image", "answer"


class Segment(NamedTuple):
    """A piece of a prompt.

    Attributes:
        kind: the first tokens of a `stream`; an `image`'s placeholders; or an `answer`, what the
            model itself would say here.
        number: of the stream or the image.
        count: tokens.
    """

    kind: str
    number: int
    count: int

    def __str__(self) -> str:
        name = self.kind if self.kind == ANSWER else f"{self.kind} {self.number}"
        return f"{self.count} of {name}"


Prompt = tuple[Segment, ...]


def num_tokens(prompt: Sequence[Segment]) -> int:
    """The length of a prompt."""
    return sum(segment.count for segment in prompt)


def cut(prompt: Sequence[Segment], count: int) -> Prompt:
    """The first `count` tokens of a prompt; fewer where that is inside an image."""
    kept: list[Segment] = []
    for segment in prompt:
        taken = min(segment.count, count)
        if taken < segment.count and segment.kind == IMAGE:
            break
        if taken:
            kept.append(segment._replace(count=taken))
        count -= taken
    return tuple(kept)


@dataclass(frozen=True)
class Add:
    """A request arrives.

    Attributes:
        salt: its `cache_salt`.
        lora: number of its adapter, 0 for none.
        embeds: its prompt comes as embeddings of those tokens.
        prompt_logprobs: it wants them, so it must not read the prefix cache.
        pools: it asks for an embedding of the prompt, not for an answer.
        resumable: it is a streaming session: more input may follow.
    """

    request_id: str
    prompt: Prompt
    max_tokens: int
    priority: int = 0
    salt: str | None = None
    lora: int = 0
    embeds: bool = False
    prompt_logprobs: bool = False
    pools: bool = False
    resumable: bool = False

    def __str__(self) -> str:
        prompt = " + ".join(map(str, self.prompt))
        more = {
            f"priority {self.priority}": self.priority,
            f"salt {self.salt}": self.salt,
            f"LoRA {self.lora}": self.lora,
            "as embeddings": self.embeds,
            "with prompt logprobs": self.prompt_logprobs,
            "pooling": self.pools,
            "a streaming session": self.resumable,
        }
        extra = "".join(f", {text}" for text, on in more.items() if on)
        return f"add {self.request_id}: {prompt} ({num_tokens(self.prompt)} tokens)" + (
            f", at most {self.max_tokens} out{extra}"
        )


@dataclass(frozen=True)
class Continue:
    """More input for a streaming session.

    Attributes:
        last: the session ends instead.
    """

    request_id: str
    prompt: Prompt
    last: bool = False

    def __str__(self) -> str:
        if self.last:
            return f"end session {self.request_id}"
        return f"tell session {self.request_id} {' + '.join(map(str, self.prompt))}"


@dataclass(frozen=True)
class Step:
    """One turn of the engine.

    Attributes:
        abort: a request that is aborted after the batch was executed and before its output is
            processed.
    """

    abort: str | None = None

    def __str__(self) -> str:
        return f"step, {self.abort} is aborted while it runs" if self.abort else "step"


@dataclass(frozen=True)
class Abort:
    """A client leaves."""

    request_id: str

    def __str__(self) -> str:
        return f"abort {self.request_id}"


@dataclass(frozen=True)
class Reset:
    """`reset_prefix_cache`.

    Attributes:
        busy: preempt all running requests for it.
        tier: empty the tier as well.
        loses_memory: if it could be reset, no row is there any more.
    """

    busy: bool = False
    tier: bool = False
    loses_memory: bool = False

    def __str__(self) -> str:
        more = ", preempting what runs" * self.busy + ", and the tier" * self.tier
        return f"reset the prefix cache{more}" + ", lose its memory" * self.loses_memory


@dataclass(frozen=True)
class Sleep:
    """The engine is put to sleep; see `Engine.sleep`."""

    level: int
    mode: str

    def __str__(self) -> str:
        return f"sleep, level {self.level}, requests: {self.mode}"


@dataclass(frozen=True)
class WakeUp:
    """The engine wakes up."""

    def __str__(self) -> str:
        return "wake up"


@dataclass(frozen=True)
class TurnTo:
    """What follows happens to another engine of the case."""

    engine: int

    def __str__(self) -> str:
        return f"turn to engine {self.engine}"


@dataclass(frozen=True)
class StartAnew:
    """The engine ends where it is, and another one starts in its place."""

    def __str__(self) -> str:
        return "end the engine where it is and start another one"


Operation = Add | Continue | Step | Abort | Reset | Sleep | WakeUp | TurnTo | StartAnew
_KINDS = {kind.__name__: kind for kind in get_args(Operation)}


def to_data(operation: Operation) -> dict[str, Any]:
    """An operation as JSON has it; defaults are left out."""
    fields = type(operation).__dataclass_fields__
    values = {k: v for k, v in asdict(operation).items() if v != fields[k].default}
    return {"do": type(operation).__name__, **values}


def from_data(data: dict[str, Any]) -> Operation:
    """The operation that `to_data` made it from."""
    values = dict(data)
    kind = _KINDS[values.pop("do")]
    if "prompt" in values:
        values["prompt"] = tuple(Segment(*segment) for segment in values["prompt"])
    return kind(**values)


def describe(operations: Sequence[Operation]) -> list[str]:
    """A line for each operation; equal ones in a row share one."""
    lines: list[tuple[str, int]] = []
    for operation in operations:
        text = str(operation)
        if lines and lines[-1][0] == text:
            lines[-1] = (text, lines[-1][1] + 1)
        else:
            lines.append((text, 1))
    return [f"{text} x {count}" if count > 1 else text for text, count in lines]
