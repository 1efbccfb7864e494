# SPDX-License-Identifier: Apache-2.0
"""What the serving command itself says: whether an engine would start with it, and as what."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.doctor import children, command_child
from vllm_ascend.doctor.environment import asks_for_something
from vllm_ascend.doctor.findings import Finding, Severity
from vllm_ascend.doctor.layout_child import LayoutRequest
from vllm_ascend.doctor.model_config import read_model
from vllm_ascend.doctor.serving_command import ServingCommand
from vllm_ascend.prefix_cache_config import PrefixCacheConfig, load_config

_PROBE = "command"
_OF_LAYOUT = (
    "block_size",
    "max_model_len",
    "num_speculative_tokens",
    "draft_method",
    "max_num_batched_tokens",
    "kv_transfer_config",
)


def ask_command(command: ServingCommand, model: Path | None) -> dict[str, Any]:
    """Let a process make an engine's configuration of a command, as serving would.

    Args:
        command: The command, with its environment.
        model: Where the model lies here, if the command's name for it is another machine's.

    Returns:
        The answer of :mod:`vllm_ascend.doctor.command_child`.
    """
    request = json.dumps({"flags": command.flags, "model": None if model is None else str(model)})
    return children.ask([str(Path(command_child.__file__)), request], environ=command.environ)


def layout_request(answer: Mapping[str, Any]) -> LayoutRequest | None:
    """Return what is to be asked of the layout; ``None`` if nothing can be: no engine would start,
    or the model's configuration is not on this machine."""
    if "model" not in answer:
        return None
    try:
        read_model(Path(answer["model"]))
    except BadInputError:
        return None
    return LayoutRequest(
        model=str(Path(answer["model"]).resolve()), **{name: answer[name] for name in _OF_LAYOUT}
    )


def check_command(
    answer: Mapping[str, Any], environ: Mapping[str, str], *, is_hybrid: bool | None
) -> Iterator[Finding]:
    """Yield what speaks against a command.

    Args:
        answer: See :func:`ask_command`.
        environ: The environment of the command.
        is_hybrid: The model has KV caches of several kinds; ``None`` if its layout is not known.
    """
    if "refused" in answer:
        text = f"`vllm serve` would not take these flags: {answer['refused']}"
        yield Finding(_PROBE, Severity.WRONG, text, "correct the command")
    elif "missing" in answer:
        text = f"the command's model {answer['missing']} is not on this machine"
        yield Finding(_PROBE, Severity.WRONG, text, "name its folder here with --model")
    elif "fails" in answer or "died" in answer:
        reason = answer.get("fails") or answer.get("died")
        text = f"an engine would not start with this command, here: {reason}"
        yield Finding(_PROBE, Severity.WRONG, text, "do what the message says")
    if "model" not in answer:
        return
    asks = asks_for_something(environ)
    if asks and not answer["enable_prefix_caching"]:
        text = "the command turns prefix caching off, and the variables ask for more of it"
        remedy = "leave --no-enable-prefix-caching out, or unset the variables"
        yield Finding(_PROBE, Severity.WRONG, text, remedy)
    if answer["hybrid_is_off"] and is_hybrid:
        severity = Severity.WRONG if asks else Severity.WARNING
        text = (
            "with this command vLLM's hybrid KV cache manager is off: it makes one kind of KV "
            "cache of all, and no variable of this project has an effect"
        )
        yield Finding(_PROBE, severity, text, "add --no-disable-hybrid-kv-cache-manager")
    yield from _check_routing(answer, load_config(environ))
    if is_hybrid is None:
        text = (
            f"the configuration of the model {answer['model']} is not in a folder here: its layout "
            "is not told"
        )
        yield Finding(_PROBE, Severity.WARNING, text, "name the folder with --model")


def _check_routing(answer: Mapping[str, Any], config: PrefixCacheConfig) -> Iterator[Finding]:
    """Yield what speaks against choosing data-parallel ranks by cache, if that is asked for."""
    if config.dp_routing is None:
        return
    name = "VLLM_ASCEND_DP_ROUTING=cache"
    if answer["data_parallel_size"] < 2:
        text = f"{name} has no effect: the command has one data-parallel rank"
        remedy = "unset it, or set --data-parallel-size"
        yield Finding(_PROBE, Severity.WARNING, text, remedy)
    elif answer["balances_outside"]:
        text = f"{name} has no effect: with --data-parallel-external-lb others choose the rank"
        remedy = "unset it, or let vLLM balance (internal or hybrid)"
        yield Finding(_PROBE, Severity.WARNING, text, remedy)
    elif not config.changes_caching:
        text = f"{name} without a switch of the prefix cache: no rank tells what it has cached"
        remedy = "set VLLM_ASCEND_PREFIX_CACHE_PROFILE=best as well"
        yield Finding(_PROBE, Severity.WRONG, text, remedy)
