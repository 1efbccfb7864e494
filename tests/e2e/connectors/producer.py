# SPDX-License-Identifier: Apache-2.0
"""A prefill instance in a process of its own, to be killed: MODEL FOLDER PAUSE_S BLOCK_SIZE."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.e2e.connectors.disaggregation import BEST, instance, prefill
from tests.e2e.models import workloads


def main() -> None:
    """Hand one request over at full speed, then others slowly."""
    model, folder, pause_s, block_size = sys.argv[1:]
    extra = {"pause_s": 0.0}
    with instance(
        Path(model),
        BEST,
        Path(folder),
        "kv_producer",
        extra=extra,
        block_size=int(block_size),
        max_model_len=1024,
    ) as running:
        prefill(running, [workloads.fresh(300, seed=0)])
        running.connector.pause_s = float(pause_s)
        prefill(running, [workloads.fresh(300 + seed, seed) for seed in range(1, 4)], first=1)


if __name__ == "__main__":
    main()
