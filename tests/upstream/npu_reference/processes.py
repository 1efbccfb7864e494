# SPDX-License-Identifier: Apache-2.0
"""Starts checks over a checkout, each in a process of its own, with a model and its answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import DeepseekV4ForCausalLM

from tests.upstream.forks import Answer, run_groups
from tests.upstream.npu_reference.checkpoint import publish
from tests.upstream.npu_reference.engine import ANSWERS, MODEL, NUM_ANSWERED
from tests.upstream.sources import checkout_here
from vllm_ascend.prefix_cache_config import child_environment
from vllm_ascend_evaluation.models.tiny.maker import make_tiny_model

CHECKS = Path(__file__).parent
# Pages have the sizes of the real model's: 128 rows of 1024 bytes, and int8 keys with a scale.
SHAPE = {"head_dim": 256, "index_head_dim": 128}
# Around every edge; longer than what the rows of state tables hold, which move on then.
LENGTHS, LONG = (5, 127, 128, 129, 300, 511, 513, 699), (3300, 6000)


def run_checks(
    checkout: Path, checks: Sequence[str], folder: Path, *, lengths: Sequence[int] = LENGTHS
) -> dict[str, Answer]:
    """Run tests of the files beside this one over a checkout.

    Args:
        checkout: The overlaid or plain one.
        checks: ``FILE::TEST``.
        folder: Where a model is made.
        lengths: Of the prompts that Hugging Face answers first, in tokens.

    Returns:
        What became of every one.
    """
    tiny = folder / "tiny"
    make_tiny_model(tiny, **SHAPE)
    model = publish(tiny, folder / "published")
    answers = folder / "answers.json"
    answers.write_text(json.dumps(hugging_face_answers(tiny, lengths)), encoding="utf-8")
    environment = child_environment(
        {
            "PYTEST_ADDOPTS": "--noconftest",
            "VLLM_ASCEND_APPLY_DSV4_PATCH": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "OMP_NUM_THREADS": "1",
            "TORCHDYNAMO_DISABLE": "1",  # it would compile for the NPU
            MODEL: str(model),
            ANSWERS: str(answers),
        }
    )
    return run_groups(
        checkout,
        {check: [str(CHECKS / check)] for check in checks},
        environment,
        imported=("vllm.entrypoints.llm",),
        torch_binding=checkout_here() / "csrc" / "torch_binding.cpp",
        patience_s=600,
    )


def names_of_tests(file: str) -> list[str]:
    """Return the tests of a file beside this one, as pytest names them.

    Raises:
        AssertionError: pytest could not collect them.
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "--noconftest",
        "-o",
        "addopts=",
    ]
    told = subprocess.run(
        [*command, str(CHECKS / file)], capture_output=True, text=True, check=False
    )
    names = [line.partition("::")[2] for line in told.stdout.splitlines() if "::" in line]
    assert names, told.stdout + told.stderr
    return [f"{file}::{name}" for name in names]


def beginning(num_tokens: int) -> list[int]:
    """Return so many tokens of the text that all prompts begin with."""
    return [(index * 37 + 11) % 1000 + 3 for index in range(num_tokens)]


@torch.no_grad()
def hugging_face_answers(model: Path, lengths: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return prompts of these lengths and two more, beginning alike, with their greedy answers."""
    text = beginning(max(lengths))
    prompts = [text[:length] for length in lengths]
    prompts += [text[:400] + [7, 8, 9, 10] * 10, [*text[:257], 11, 12]]
    torch.set_num_threads(1)
    reference = DeepseekV4ForCausalLM.from_pretrained(model, dtype=torch.float32)
    reference.config._experts_implementation = "eager"
    answers = []
    for prompt in prompts:
        tokens = reference.generate(
            torch.tensor([prompt]),
            max_new_tokens=NUM_ANSWERED,
            do_sample=False,
            eos_token_id=None,
        )
        answers.append((prompt, tokens[0, len(prompt) :].tolist()))
    return answers
