# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.upstream.npu_reference.serve FOLDER PORT``: see ``make serve-real``.

Makes the folder and becomes vLLM's own ``vllm serve``, so that Ctrl+C reaches that alone. Where
vllm-ascend has DSpark, the model and the command are those of its guide for
DeepSeek-V4-Flash-0731 on A3, cut to the size of a CPU.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.upstream.npu_reference.dspark_checkpoint import BLOCK
from tests.upstream.npu_reference.host import BEST, Host, make_host
from tests.upstream.npu_reference.releases import differences_here
from tests.upstream.sources import named_checkout

# The guide has 1,048,576 tokens, 10,240 a step and 64 sequences, and four ranks of four NPUs each.
GUIDE = (
    *("--block-size", "32", "--max-num-batched-tokens", "1024"),
    "--speculative-config",
    json.dumps({"method": "dspark", "num_speculative_tokens": BLOCK, "enforce_eager": True}),
    *("--attention-config", json.dumps({"indexer_kv_dtype": "int8"})),
)


def command(host: Host, port: int, *options: str) -> list[str]:
    """Return the command that serves the model of a host on loopback.

    Args:
        host: Where.
        port: Of 127.0.0.1.
        options: More of ``vllm serve``; of one given twice the last one holds.
    """
    apart = ("--distributed-executor-backend", "mp")
    return [
        *(str(Path(sys.executable).with_name("vllm")), "serve", str(host.model)),
        *("--served-model-name", host.model.name),
        *("--dtype", "float32", "--enforce-eager", "--block-size", "128"),
        *("--max-model-len", "16384", "--max-num-seqs", "16"),
        *("--kv-cache-memory-bytes", str(1 << 30), "--enable-prompt-tokens-details"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *(apart if differences_here().needs_worker_process else ()),
        *options,
    ]


def main(arguments: Sequence[str]) -> None:
    """Make the host, say what is to be known of it, and serve."""
    folder, port = Path(arguments[0]).resolve(), int(arguments[1])
    try:
        named_checkout()
    except ValueError as error:
        raise SystemExit(str(error)) from None
    dspark = differences_here().has_dspark
    host = make_host(folder, dspark=dspark)
    print(f"vllm-ascend, overlaid: {host.checkout}")
    print(f"its environment:       source {folder / 'set_env.sh'}")
    print(f"it will listen on:     http://127.0.0.1:{port}, model {host.model.name}", flush=True)
    serve = command(host, port, *(GUIDE if dspark else ()))
    os.execve(serve[0], serve, host.environment(BEST))


if __name__ == "__main__":
    main(sys.argv[1:])
