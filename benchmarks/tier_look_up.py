# SPDX-License-Identifier: Apache-2.0
"""How long a look-up of a million tokens takes in a real Mooncake Store on the loopback.

python -m benchmarks.tier_look_up
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from tests.e2e.tier.real_mooncake import running_master
from vllm_ascend.tier.layout import ROWS, TAIL
from vllm_ascend.tier.look_up import StoredHit, longest_hit
from vllm_ascend.tier.mooncake import MooncakeIndex, MooncakeKeys, connect

_UNIT = 128
_OBJECT_BYTES = 64
_BATCH = 512


def main() -> None:
    """Measure, and print a line per case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1 << 20)
    parser.add_argument("--repeats", type=int, default=20)
    asked = parser.parse_args()
    num_units = asked.tokens // _UNIT
    with tempfile.TemporaryDirectory() as folder, running_master(Path(folder)) as settings:
        client = connect(settings, gives_memory=True)
        for case in ("nothing there", "rows without a tail", "all there"):
            if case == "rows without a tail":
                _put(client, [_row(unit) for unit in range(num_units)])
            elif case == "all there":
                _put(client, [_tail(num_units)])
            hit, times = _measure(client, num_units, asked.repeats)
            print(
                f"{asked.tokens:,} tokens, {case}: hit {hit.end * _UNIT:,}, median "
                f"{statistics.median(times):.1f} ms, slowest {max(times):.1f} ms"
            )
        client.close()


def _measure(client: Any, num_units: int, repeats: int) -> tuple[StoredHit, list[float]]:
    times = []
    for _ in range(repeats):
        index = MooncakeIndex(client, MooncakeKeys("0" * 16, 1))
        start = time.perf_counter()
        hit = longest_hit(index.contains, _row, _tail, 0, num_units)
        times.append(1e3 * (time.perf_counter() - start))
    return hit, times


def _put(client: Any, keys: list[bytes]) -> None:
    names = MooncakeKeys("0" * 16, 1)
    data = np.zeros(_OBJECT_BYTES, np.uint8)
    assert client.register_buffer(data.ctypes.data, data.nbytes) == 0
    for start in range(0, len(keys), _BATCH):
        batch = names.names(keys[start : start + _BATCH])
        statuses = client.batch_put_from(
            batch, [data.ctypes.data] * len(batch), [_OBJECT_BYTES] * len(batch)
        )
        assert not any(statuses), "the store takes them"
    client.unregister_buffer(data.ctypes.data)


def _row(unit: int) -> bytes:
    return ROWS + sha256(b"%d" % unit).digest()


def _tail(boundary: int) -> bytes:
    return TAIL + sha256(b"%d" % boundary).digest()


if __name__ == "__main__":
    main()
