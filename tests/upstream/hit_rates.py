# SPDX-License-Identifier: Apache-2.0
"""Hit rates of the real vllm-ascend with the overlay, for the release of vLLM that is installed.

    PYTHON -m tests.upstream.hit_rates [--workload W1] [--block-size 32] [--drafts dspark:7]

Each run builds vLLM's scheduler with the specs that vllm-ascend chooses for DeepSeek-V4-Flash on A3
(16 GiB, profile ``best``), over a stub of the NPU; the content oracle checks every row that would
be read. PYTHON is ``.venv/bin/python``, or that of ``.venv-engine/0.30.0``. The exit code is 1 if a
row was wrong. A trace is replayed as everywhere in the docs: 1,000 requests, answers of 64 tokens.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.upstream.sources import (
    REPOSITORY,
    checkout_here,
    copy_python,
    put_overlay,
    release_here,
)

WORKLOADS = ("W1", "W2", "W3", "W5", "W5f")
_TRACE_LIMITS = {"max_requests": 1000, "max_output_tokens": 64}
# A process of its own; the checkout's package is the first on its path.
_CHILD = (
    "import sys; from pathlib import Path; from tests.upstream import hit_rates; "
    "hit_rates.replay(Path(sys.argv[1]), sys.argv[2])"
)


def measure(
    checkout: Path, workload: str, block_size: int, drafts: tuple[str, int]
) -> tuple[float, list[str]]:
    """Replay a workload over an overlaid checkout.

    Args:
        checkout: It has the overlay.
        workload: A generated workload, or a trace's file.
        block_size: ``--block-size``.
        drafts: Method and draft tokens per step.

    Returns:
        Hit tokens in percent of prompt tokens, and what the oracle found.

    Raises:
        SystemExit: The replay failed; what it said stands above.
    """
    source = {"source": workload, **(_TRACE_LIMITS if Path(workload).is_file() else {})}
    asked = {"source": source, "block_size": block_size, "drafts": drafts}
    from vllm_ascend.prefix_cache_config import child_environment

    environ = child_environment(
        {
            "VLLM_ASCEND_APPLY_DSV4_PATCH": "1",
            "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best",
            "VLLM_LOGGING_LEVEL": "ERROR",
        }
    )
    result = subprocess.run(
        [sys.executable, "-c", _CHILD, str(checkout), json.dumps(asked)],
        cwd=REPOSITORY,
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if result.returncode:
        raise SystemExit(f"the replay of {workload} ended with {result.returncode}")
    answer = json.loads(result.stdout.splitlines()[-1])
    return answer["percent"], answer["violations"]


def replay(checkout: Path, asked: str) -> None:
    """Run one replay and print its result as JSON; the child's part."""
    from tests.upstream import stub

    stub.install(checkout)
    import vllm_ascend.patch.platform  # vllm-ascend's patches and ours
    import vllm_ascend.platform

    platform = vllm_ascend.platform.NPUPlatform
    platform.check_and_update_config = classmethod(lambda *_: None)  # it asks for a device
    platform.device_type = "cpu"
    from vllm_ascend_evaluation.replay.runs.child import run_job
    from vllm_ascend_evaluation.replay.runs.job import Job
    from vllm_ascend_evaluation.replay.sources import WorkloadSource

    given = json.loads(asked)
    method, num_drafts = given["drafts"]
    result = run_job(
        Job(
            variant="best",
            patched=False,  # the checkout has patched itself
            environment={},
            layout="dsv4-flash-a3",
            block_size=given["block_size"],
            kv_memory_bytes=16 << 30,
            workload=WorkloadSource(**given["source"]),
            max_num_seqs=64,
            max_num_batched_tokens=8192,
            max_model_len=133_120,
            verify=True,
            num_speculative_tokens=num_drafts,
            draft_method=method,
        )
    )
    print(json.dumps({"percent": result.hit_rate, "violations": result.violations}))


def _rows(
    checkout: Path, workloads: Sequence[str], block_size: int, drafts: tuple[str, int]
) -> Iterator[list[str]]:
    for workload in workloads:
        percent, violations = measure(checkout, workload, block_size, drafts)
        print(f"{Path(workload).stem:24} {percent:6.2f}", *violations, sep="\n  ", flush=True)
        yield violations


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line per workload; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workload", action="append", help="default: W1, W2, W3, W5, W5f")
    parser.add_argument("--block-size", type=int, default=128, choices=(32, 64, 128))
    parser.add_argument("--drafts", metavar="METHOD:N", help="default: none")
    options = parser.parse_args(arguments)
    workloads = options.workload or WORKLOADS
    from vllm_ascend_evaluation.replay.commands import drafts_of
    from vllm_ascend_evaluation.replay.sources import WorkloadSource

    try:
        source, drafts = checkout_here(), drafts_of(options.drafts, 0)
        for workload in workloads:
            WorkloadSource(workload).load()
    except ValueError as error:  # what the user gave cannot be used
        parser.error(str(error))
    with tempfile.TemporaryDirectory() as folder:
        checkout = put_overlay(copy_python(source, Path(folder) / "vllm-ascend"))
        size, (method, count) = options.block_size, drafts
        print(f"vllm-ascend {release_here()}, block size {size}, {method}:{count}")
        return int(any([*_rows(checkout, workloads, size, drafts)]))


if __name__ == "__main__":
    sys.exit(main())
