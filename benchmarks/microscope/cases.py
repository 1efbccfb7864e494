# SPDX-License-Identifier: Apache-2.0
"""What is measured: an operation on prompts of so many tokens, among so many running requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

PROMPT_TOKENS = tuple(1024 * size for size in (8, 32, 128, 512, 1024))
# (running requests, tokens of each prompt)
RUNNING = tuple(
    (number, 1024 * size)
    for number, size in ((1, 8), (1, 128), (1, 1024), (16, 8), (64, 8), (256, 1), (256, 8))
)
PROMPTS, STEPS = "bench_prompts.py", "bench_steps.py"


class Operation(NamedTuple):
    """What is timed.

    Attributes:
        file: Where its benchmark is.
        title: What a plot says of it, and
        detail: what a table adds.
    """

    file: str
    title: str
    detail: str = ""


OPERATIONS = {
    "add_request": Operation(PROMPTS, "add_request()", "with the request's hashes"),
    "look_up_miss": Operation(PROMPTS, "Look-up, nothing shared"),
    "look_up_full": Operation(PROMPTS, "Look-up, the whole prompt shared"),
    "look_up_middle": Operation(PROMPTS, "Look-up, the first half shared"),
    "allocate": Operation(PROMPTS, "Allocate a prompt's blocks", "in chunks of 8,192 tokens"),
    "cache": Operation(PROMPTS, "Cache a prompt's blocks", "in chunks of 8,192 tokens"),
    "free": Operation(PROMPTS, "Free a prompt's blocks"),
    "schedule": Operation(STEPS, "schedule()", "a step in which every request decodes"),
    "update": Operation(STEPS, "update_from_output()", "of such a step"),
}


@dataclass(frozen=True)
class Case:
    """One measurement.

    Attributes:
        operation: One of ``OPERATIONS``.
        num_tokens: Tokens of a prompt.
        num_running: Requests that decode, 0 where none matters.
    """

    operation: str
    num_tokens: int
    num_running: int = 0

    @property
    def size(self) -> str:
        """Return what it is measured on: ``128K``, or ``16x128K``."""
        return size(self.num_tokens, self.num_running)

    @property
    def name(self) -> str:
        """Return pytest's name of it: ``bench_free[128K]``."""
        return f"bench_{self.operation}[{self.size}]"

    @property
    def file(self) -> str:
        """Return the file that it is in."""
        return OPERATIONS[self.operation].file


def size(num_tokens: int, num_running: int = 0) -> str:
    """Return a short name, with binary thousands: ``128K``, ``16x128K``."""
    tokens = f"{num_tokens >> 20}M" if num_tokens >= 1 << 20 else f"{num_tokens >> 10}K"
    return f"{num_running}x{tokens}" if num_running else tokens


ALL_CASES = tuple(
    Case(operation, *place)
    for operation, (file, *_) in OPERATIONS.items()
    for place in (
        [(tokens, number) for number, tokens in RUNNING]
        if file == STEPS
        else [(tokens, 0) for tokens in PROMPT_TOKENS]
    )
)
