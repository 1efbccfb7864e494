# SPDX-License-Identifier: Apache-2.0
"""How fast the checksum of the tier's objects is, beside others that Python has.

python -m benchmarks.tier_checksum
"""

from __future__ import annotations

import argparse
import hashlib
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from vllm_ascend.tier.objects import Bytes, checksum

# DeepSeek-V4-Flash: the rows of 128 tokens, and a tail.
_SIZES = (796_032, 6_600_000)
_CHECKSUMS: dict[str, Callable[[Bytes], Any]] = {
    "the tier's (BLAKE3)": checksum,
    "zlib.crc32": lambda payload: zlib.crc32(payload.data),
    "hashlib.sha256": lambda payload: hashlib.sha256(payload.data).digest(),
    "hashlib.blake2b": lambda payload: hashlib.blake2b(payload.data).digest(),
}


def main() -> None:
    """Measure, and print a line per checksum and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    for size in _SIZES:
        payload = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
        for name, function in _CHECKSUMS.items():
            function(payload)
            start = time.perf_counter()
            for _ in range(repeats):
                function(payload)
            rate = repeats * size / (time.perf_counter() - start) / 1e9
            print(f"{size:,} bytes, {name}: {rate:.1f} GB/s")


if __name__ == "__main__":
    main()
