# SPDX-License-Identifier: Apache-2.0
"""The real vLLM engine in this process: scheduler, model runner, caches; many one after another.

Only the executor is not the one that serves: vLLM's own for a single process stands in for worker
processes, so that an engine starts in seconds and a test can reach into its worker.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from vllm import LLM, SamplingParams, TokensPrompt
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from tests.release_marks import with_our_interval
from vllm_ascend.prefix_cache_config import child_environment

# Block 0 is the null block.
MAX_MODEL_LEN = 6144
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Answer:
    """What a request returned.

    Attributes:
        tokens: Sampled token ids.
        logprobs: Theirs.
        num_cached_tokens: Prompt tokens that were hit.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    num_cached_tokens: int

    def equals(self, other: Answer, *, tolerance: float = TOLERANCE) -> bool:
        """Whether both sampled the same, with the same logprobs."""
        return self.tokens == other.tokens and all(
            abs(mine - theirs) <= tolerance
            for mine, theirs in zip(self.logprobs, other.logprobs, strict=True)
        )


class Engine:
    """A running engine; requests are token ids, sampling is greedy."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm

    @property
    def scheduler(self) -> Any:
        """The engine's scheduler."""
        return self.llm.llm_engine.engine_core.engine_core.scheduler

    @property
    def runner(self) -> Any:
        """The worker's model runner."""
        executor = self.llm.llm_engine.engine_core.engine_core.model_executor
        return executor.driver_worker.worker.model_runner

    def ask(self, prompts: Sequence[Sequence[int]], max_tokens: int = 4) -> list[Answer]:
        """Answer prompts, all at once."""
        outputs = self.llm.generate(
            [TokensPrompt(prompt_token_ids=list(prompt)) for prompt in prompts],
            sampling(max_tokens),
            use_tqdm=False,
        )
        return [_answer(output) for output in outputs]

    def ask_one_by_one(self, prompts: Sequence[Sequence[int]], max_tokens: int = 4) -> list[Answer]:
        """Answer prompts, each after the one before it has ended."""
        return [self.ask([prompt], max_tokens)[0] for prompt in prompts]

    def forget(self) -> None:
        """Empty the prefix cache."""
        assert self.llm.reset_prefix_cache()


def sampling(max_tokens: int) -> SamplingParams:
    """Greedy, exactly ``max_tokens`` tokens, with the logprobs of those that were sampled."""
    return SamplingParams(
        max_tokens=max_tokens, temperature=0, ignore_eos=True, detokenize=False, logprobs=0
    )


def _answer(output: Any) -> Answer:
    (completion,) = output.outputs
    tokens = tuple(completion.token_ids)
    return Answer(
        tokens=tokens,
        logprobs=tuple(
            step[token].logprob for step, token in zip(completion.logprobs, tokens, strict=True)
        ),
        num_cached_tokens=output.num_cached_tokens or 0,
    )


@contextlib.contextmanager
def engine(
    model: Path, switches: dict[str, str] | None = None, **arguments: Any
) -> Iterator[Engine]:
    """Run an engine.

    Args:
        model: A folder in Hugging Face's format.
        switches: The project's environment variables; no others of it are set.
        arguments: Of ``vllm.LLM``, over the defaults here.
    """
    environment = child_environment(
        {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "WARNING",
            **with_our_interval(switches or {}),
        }
    )
    settings: dict[str, Any] = {
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": MAX_MODEL_LEN,
        "num_gpu_blocks_override": 6000,
        "seed": 0,
        "skip_tokenizer_init": True,
        "enable_prefix_caching": True,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 16,
        "disable_hybrid_kv_cache_manager": False,
        "distributed_executor_backend": UniProcExecutor,
    }
    torch.set_num_threads(1)  # tests run side by side, and the threads of two would only wait
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(torch, "set_num_threads"),  # the worker disables it for good
    ):
        try:
            yield Engine(LLM(model=str(model), **{**settings, **arguments}))
        finally:
            cleanup_dist_env_and_memory()
