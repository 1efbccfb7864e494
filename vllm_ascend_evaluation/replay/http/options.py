# SPDX-License-Identifier: Apache-2.0
"""The options of a replay against a server, and which options go together."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.server_access.access import HttpAccess
from vllm_ascend_evaluation.given_options import given_options
from vllm_ascend_evaluation.replay.http.prompts import PromptShape
from vllm_ascend_evaluation.replay.runs.job import CLOSED_LOOP, TIMESTAMPS

Url = Annotated[
    str | None,
    typer.Option(
        help="Send the requests to this OpenAI-compatible server, in place of a replay.",
        show_default="none",
    ),
]
Model = Annotated[str | None, typer.Option(help="--url: its model.", show_default="its first")]
VocabSize = Annotated[int, typer.Option(help="--url: ids of prompts stay below it.")]
Timestamps = Annotated[bool, typer.Option("--timestamps", help="As --arrivals timestamps.")]
Speed = Annotated[float, typer.Option(help="Speed the timestamps up by this factor.")]
MaxPromptTokens = Annotated[
    int | None,
    typer.Option(help="--url: leave out longer prompts.", min=1, show_default="no limit"),
]
Scale = Annotated[
    int, typer.Option(help="--url: divide prompt lengths by this power of two.", min=1)
]
Timeout = Annotated[float, typer.Option(help="--url: give up after this many seconds of silence.")]

_ONLY_REPLAY = (
    *(
        "variant",
        "eviction",
        "layout",
        "block_size",
        "mtp",
        "drafts",
        "kv_gib",
        "verify",
        "release",
    ),
    *("tier_gib", "tier_gib_per_second", "disk_gib", "disk_gib_per_second", "restart_at"),
    *("model_ttft", "step_ms", "token_us", "cost_model", "max_num_seqs"),
    *("max_num_batched_tokens", "max_model_len", "jobs"),
)
_ONLY_SERVER = (
    *("model", "vocab_size", "max_prompt_tokens", "scale", "timeout"),
    *("api_key", "insecure"),
)


@dataclass(frozen=True)
class HttpOptions:
    """How to play workloads against a server.

    Attributes:
        url: The server.
        model: Its model; the first that it offers if ``None``.
        shape: How prompts are fitted to it.
        arrivals: ``closed`` (loop) or ``timestamps``.
        speed: So many times as fast as the timestamps.
        timeout_s: Longest silence of the server in seconds.
        out: Folder for report.json and report.html.
        png: The summary picture, if wanted.
        access: API key and TLS.
    """

    url: str
    model: str | None = None
    shape: PromptShape = field(default_factory=PromptShape)
    arrivals: str = CLOSED_LOOP
    speed: float = 1.0
    timeout_s: float = 600.0
    out: Path = Path("replay-out")
    png: Path | None = None
    access: HttpAccess = field(default_factory=HttpAccess)

    def check(self) -> None:
        """Check what cannot be left to the server.

        Raises:
            BadInputError: Names the option.
        """
        self.shape.check()
        if not self.timeout_s > 0:
            raise BadInputError(f"--timeout {self.timeout_s:g}: expected more than 0")

    @property
    def is_open_loop(self) -> bool:
        """Whether requests arrive by the trace's clock, whatever is still under way."""
        return self.arrivals == TIMESTAMPS


def check_together(context: typer.Context, *, arrivals: str, is_random: bool = False) -> None:
    """Check that options which mean nothing together are not given together.

    Args:
        context: Of the command; knows what was given.
        arrivals: ``closed`` or ``timestamps``.
        is_random: Whether times are drawn, at a rate that the user gives.

    Raises:
        BadInputError: Names the options.
    """
    is_server = context.params["url"] is not None
    given = given_options(context)
    wrong = [given[name] for name in (_ONLY_REPLAY if is_server else _ONLY_SERVER) if name in given]
    if wrong and is_server:
        raise BadInputError(f"--url goes without {', '.join(wrong)}: the server has its own")
    if wrong:
        raise BadInputError(f"{', '.join(wrong)}: only with --url")
    if arrivals == TIMESTAMPS and "concurrency" in given:
        raise BadInputError("--concurrency goes without timestamps: they say when requests arrive")
    speed = context.params["speed"]
    if not 0 < speed < float("inf"):
        raise BadInputError(f"--speed {speed:g}: expected a factor above 0")
    if is_random and "speed" in given:
        raise BadInputError("--speed goes without --arrivals poisson:RATE: give another RATE")
    if arrivals != TIMESTAMPS and "speed" in given:
        raise BadInputError(f"--speed {speed:g}: only with --timestamps")
