# SPDX-License-Identifier: Apache-2.0
"""Makes a head of vllm-ascend known to the overlay::

python -m tools.record_head CHECKOUT COMMIT

``CHECKOUT`` must be a clean checkout of ``COMMIT``, under whose name its digests are recorded.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from vllm_ascend.overlay.checkout import HEADS, digest_files, find_root


def main(checkout: str, commit: str) -> None:
    """Record the digests; a commit known already is recorded anew."""
    heads = json.loads(HEADS.read_text(encoding="utf-8")) if HEADS.is_file() else {}
    heads[commit] = dict(digest_files(find_root(Path(checkout)) / "vllm_ascend"))
    HEADS.write_text(json.dumps(heads, indent=0, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
