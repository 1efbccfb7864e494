# SPDX-License-Identifier: Apache-2.0
"""Makes a commit of vllm-ascend known to the overlay::

python -m tools.record_head CHECKOUT COMMIT

``CHECKOUT`` must be a clean checkout of ``COMMIT``, or its source distribution.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from vllm_ascend.overlay.checkout import find_root
from vllm_ascend.overlay.functions import rested_on
from vllm_ascend.overlay.known_heads import DATA, digest_files
from vllm_ascend.overlay.release import read_release
from vllm_ascend.releases import find_release


def main(checkout: str, commit: str) -> None:
    """Record the digests; a commit known already is recorded anew."""
    root = find_root(Path(checkout))
    release = read_release(root)
    if release.version is None or release.vllm is None:
        raise SystemExit(f"{root} does not say which release it is")
    head = {
        "commit": commit,
        "version": release.version,
        "vllm": release.vllm,
        "files": dict(digest_files(root / "vllm_ascend")),
    }
    supported = find_release(release.vllm)
    if supported is not None:
        head["functions"] = rested_on(root / "vllm_ascend", supported)
    file = DATA / f"{release.version}-{commit[:8]}.json"
    file.write_text(json.dumps(head, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
