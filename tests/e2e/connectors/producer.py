# SPDX-License-Identifier: Apache-2.0
"""A prefill instance in a process of its own, to be killed: MODEL FOLDER BLOCK_SIZE."""

from __future__ import annotations

import sys
from pathlib import Path

from vllm.distributed.kv_transfer import get_kv_transfer_group

from tests.e2e.connectors.disaggregation import BEST, instance, prefill
from tests.e2e.models import workloads

PROMPTS = [workloads.fresh(300 + 10 * seed, seed) for seed in range(4)]


def main() -> None:
    """Hand one request over at full speed, the others too slowly to live to see it."""
    model, folder, block_size = sys.argv[1:]
    with instance(
        Path(model), BEST, Path(folder), "kv_producer", block_size=int(block_size)
    ) as running:
        prefill(running, PROMPTS[:1])
        get_kv_transfer_group().pause_s = 60.0
        prefill(running, PROMPTS[1:], first=1)


if __name__ == "__main__":
    main()
