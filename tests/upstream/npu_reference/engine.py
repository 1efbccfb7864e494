# SPDX-License-Identifier: Apache-2.0
"""An engine of the real tree in this process, over the reference operators."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.upstream.npu_reference.device import compute_in_fp32
from tests.upstream.npu_reference.tagged_runner import TaggedRunner

# What the tests that start processes say in the environment: a model, and answers to prompts.
MODEL, ANSWERS = "NPU_REFERENCE_MODEL", "NPU_REFERENCE_ANSWERS"
NUM_ANSWERED = 12


class Engine:
    """vLLM's engine with the real worker; every row is checked.

    Args:
        rows: Rows of a compressed block.
        switches: Of the prefix cache, by their variables.
        num_drafts: Of the draft method; 0: none.
        method: How drafts are made.
        exact: Whether the model computes in fp32, as Hugging Face's.
        model: Another one than the tests'.
        settings: Of the engine.
    """

    def __init__(
        self,
        *,
        rows: int = 128,
        switches: dict[str, str] | None = None,
        num_drafts: int = 0,
        method: str = "mtp",
        exact: bool = True,
        model: Path | None = None,
        **settings: Any,
    ) -> None:
        from vllm import LLM

        torch.set_num_threads(1)
        os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} | (switches or {})
        if rows != 128:
            os.environ["VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE"] = str(rows)
        if exact:
            compute_in_fp32()
        if num_drafts:
            drafts = {"method": method, "num_speculative_tokens": num_drafts, "enforce_eager": True}
            settings["speculative_config"] = drafts
        usual = {
            "max_model_len": 2048,
            "max_num_batched_tokens": 512,
            "max_num_seqs": 8,
            "num_gpu_blocks_override": 700,
            "kv_cache_memory_bytes": 2 << 30,
            "enable_prefix_caching": True,
            "async_scheduling": False,
        }
        self.llm = LLM(
            str(model or os.environ[MODEL]),
            dtype="float32" if exact else "bfloat16",
            enforce_eager=True,
            block_size=rows,
            disable_log_stats=True,
            **usual | settings,
        )
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.runner = self.core.model_executor.driver_worker.worker.model_runner
        self.tagged = TaggedRunner(self.runner)
        _pause_while_nothing_runs(self.core)

    def answer(
        self,
        prompts: Sequence[Sequence[int]],
        num_tokens: int = NUM_ANSWERED,
        *,
        logprobs: int | None = None,
        kv_transfer_params: Sequence[dict[str, Any]] | None = None,
    ) -> list[Any]:
        """Return the outputs for prompts, all of them at once, sampled greedily.

        Args:
            prompts: Their tokens.
            num_tokens: To sample.
            logprobs: How many to return for a token.
            kv_transfer_params: For each prompt, what a connector is told.
        """
        from vllm import SamplingParams

        sampling = [
            SamplingParams(
                temperature=0,
                max_tokens=num_tokens,
                ignore_eos=True,
                logprobs=logprobs,
                extra_args=told and {"kv_transfer_params": told},
            )
            for told in kv_transfer_params or [None] * len(prompts)
        ]
        asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        return self.llm.generate(asked, sampling, use_tqdm=False)


def _pause_while_nothing_runs(core: Any) -> None:
    """Pause after each step that computes nothing, as vLLM's engine in a process of its own does.

    vLLM's engine in the caller's process does not: while all requests wait for what a thread loads,
    it steps on and on, and the thread may get the interpreter back only after its switch interval
    of 5 ms, after every call of torch. Loading a prompt then takes minutes.
    """
    after_step = core.post_step

    def post_step(model_executed: bool) -> None:
        after_step(model_executed)
        if not model_executed and core.scheduler.has_unfinished_requests():
            time.sleep(0.001)

    core.post_step = post_step


def answered() -> list[tuple[list[int], list[int]]]:
    """Return prompts and what Hugging Face answers to them."""
    told = json.loads(Path(os.environ[ANSWERS]).read_text(encoding="utf-8"))
    return [(prompt, answer) for prompt, answer in told]


def tokens_of(outputs: Sequence[Any]) -> list[list[int]]:
    """Return the tokens that were sampled."""
    return [list(output.outputs[0].token_ids) for output in outputs]
