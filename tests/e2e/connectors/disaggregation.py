# SPDX-License-Identifier: Apache-2.0
"""Prefill in one engine, decode in another, through files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vllm import TokensPrompt
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

from tests.e2e.models.engines import Answer, Engine, _answer, engine, sampling
from vllm_ascend_evaluation.oracle import check_drained, check_integrity

Prompt = Sequence[int]

DSV4 = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1"}
BEST = {**DSV4, "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}


@contextlib.contextmanager
def instance(
    model: Path,
    switches: dict[str, str],
    folder: Path,
    role: str,
    *,
    policy: str = "fail",
    extra: dict[str, Any] | None = None,
    **arguments: Any,
) -> Iterator[Engine]:
    """Run an engine with a :class:`FileConnector`.

    Args:
        folder: Where requests are handed over.
        role: ``kv_producer``, ``kv_consumer`` or ``kv_both``.
        policy: vLLM's ``kv_load_failure_policy``.
        extra: More of the connector's own settings.
    """
    transfer = KVTransferConfig(
        kv_connector="FileConnector",
        kv_connector_module_path="tests.e2e.connectors.file_connector",
        kv_role=role,
        kv_load_failure_policy=policy,
        kv_connector_extra_config={"folder": str(folder), **(extra or {})},
    )
    with engine(model, switches, kv_transfer_config=transfer, **arguments) as running:
        try:
            yield running
        finally:
            ensure_kv_transfer_shutdown()


def ask(
    running: Engine, prompts: Sequence[Prompt], params: Sequence[dict[str, Any]], max_tokens: int
) -> list[Any]:
    """Send prompts, all at once, each with transfer parameters; return vLLM's outputs."""
    settings = [sampling(max_tokens) for _ in prompts]
    for setting, param in zip(settings, params, strict=True):
        setting.extra_args = {"kv_transfer_params": dict(param)}
    return running.llm.generate(
        [TokensPrompt(prompt_token_ids=list(prompt)) for prompt in prompts],
        settings,
        use_tqdm=False,
    )


def prefill(running: Engine, prompts: Sequence[Prompt], first: int = 0) -> list[dict[str, Any]]:
    """Compute prompts and hand them over; return the parameters that the decode side needs."""
    params = [{"do_remote_decode": True, "name": f"r{first + i}"} for i in range(len(prompts))]
    outputs = ask(running, prompts, params, max_tokens=1)
    # The step in which finished requests are told to the workers.
    running.llm.llm_engine.engine_core.get_output()
    return [output.kv_transfer_params for output in outputs]


def decode(
    running: Engine, prompts: Sequence[Prompt], params: Sequence[dict[str, Any]], max_tokens: int
) -> list[Answer]:
    """Answer prompts that another engine has computed."""
    return [_answer(output) for output in ask(running, prompts, params, max_tokens)]


def assert_nothing_leaked(running: Engine) -> None:
    """Check the pool while it is cached, and that nothing is left once it is reset."""
    manager = running.scheduler.kv_cache_manager
    assert not running.scheduler.requests
    check_integrity(manager)
    running.forget()
    check_drained(manager)
