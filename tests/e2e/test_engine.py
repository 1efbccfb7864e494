# SPDX-License-Identifier: Apache-2.0
"""The real vLLM engine on the CPU, with the plugin loaded as vLLM loads it.

A tiny Gemma-3 (5 sliding-window layers, 1 full) answers the same prompts twice. Retention must
hit where dense caching hits, and what is computed behind a hit must equal what was computed
without.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_ascend.prefix_cache_config import child_environment
from vllm_ascend_evaluation.models.tiny.gemma import gemma_config

PROGRAM = """
import json, sys
from vllm import LLM, SamplingParams

def main():
    llm = LLM(model=sys.argv[1], load_format="dummy", dtype="float32", enforce_eager=True,
              max_model_len=4096, block_size=32, num_gpu_blocks_override=1000, seed=0,
              skip_tokenizer_init=True, enable_prefix_caching=True, max_num_batched_tokens=1024,
              disable_hybrid_kv_cache_manager=False)
    prompts = [[(i * 7 + 13 * p) % 500 + 3 for i in range(3000 - 700 * p)] for p in range(2)]
    # A conversation: the first prompt, an answer, and a question.
    prompts.append(prompts[0] + [(i * 11) % 500 + 3 for i in range(300)])
    sampling = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True, detokenize=False,
                              logprobs=1)
    for prompt in [*prompts[:2], *prompts]:
        (answer,) = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        tokens = list(answer.outputs[0].token_ids)
        logprobs = [step[token].logprob for step, token in zip(answer.outputs[0].logprobs, tokens)]
        print("ANSWER", json.dumps([answer.num_cached_tokens, tokens, logprobs]), flush=True)

if __name__ == "__main__":
    main()
"""


def start(folder: Path, **environment: str) -> subprocess.Popen[str]:
    (folder / "config.json").write_text(json.dumps(gemma_config()))
    program = folder / "program.py"
    program.write_text(PROGRAM)
    return subprocess.Popen(
        [sys.executable, str(program), str(folder)],
        env=child_environment(
            {
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # tests of servers have a process for it
                "VLLM_LOGGING_LEVEL": "INFO",
                **environment,
            }
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
    )


def answers(process: subprocess.Popen[str]) -> tuple[list[list], str]:
    output, _ = process.communicate(timeout=400)
    lines = [line for line in output.splitlines() if line.startswith("ANSWER ")]
    assert process.returncode == 0, output
    return [json.loads(line.removeprefix("ANSWER ")) for line in lines], output


def test_retention_in_the_real_engine(tmp_path):
    folders = [tmp_path / "dense", tmp_path / "sparse"]
    for folder in folders:
        folder.mkdir()
    assert "VLLM_PREFIX_CACHE_RETENTION_INTERVAL" not in os.environ
    processes = [
        start(folders[0]),
        # The profile brings the workers' patches, too; nothing in this model asks for a copy.
        start(
            folders[1],
            VLLM_ASCEND_PREFIX_CACHE_PROFILE="best",
            VLLM_PREFIX_CACHE_RETENTION_INTERVAL="0",
        ),
    ]
    (dense, _), (sparse, log) = map(answers, processes)
    # 3000 and 2300 tokens in blocks of 32: 93 * 32 and 71 * 32; the first prompt's last whole
    # block again at the start of the conversation's second turn.
    expected_hits = [0, 0, 2976, 2272, 2976]
    assert [hits or 0 for hits, _, _ in dense] == expected_hits
    assert [hits or 0 for hits, _, _ in sparse] == expected_hits
    assert "prefix cache: granule 32" in log
    for runs in (dense, sparse):
        for uncached, cached in ((runs[0], runs[2]), (runs[1], runs[3])):
            assert cached[1] == uncached[1]
            assert cached[2] == pytest.approx(uncached[2], abs=1e-4)
    for ours, theirs in zip(sparse, dense, strict=True):
        assert ours[1] == theirs[1]
        assert ours[2] == pytest.approx(theirs[2], abs=1e-4)
