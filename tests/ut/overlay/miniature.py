# SPDX-License-Identifier: Apache-2.0
"""A checkout of vllm-ascend in miniature: the files that an overlay meets, nearly empty.

It is made here, of no code of vllm-ascend's. Heads and patch digests are its own, too.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vllm_ascend.overlay import checkout as overlay_checkout
from vllm_ascend.overlay import functions as overlay_functions
from vllm_ascend.overlay import known_heads as overlay_heads
from vllm_ascend.overlay import plan as overlay_plan
from vllm_ascend.overlay.known_heads import KnownHead, digest_files
from vllm_ascend.overlay.patch_list import CHANGED, ListedPatch
from vllm_ascend.patch.upstream.source import source_digest_in_file
from vllm_ascend.releases import SUPPORTED, Release, find_release

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_COMMON = {
    "__init__.py": "def register():\n    return 'vllm_ascend.platform.NPUPlatform'\n",
    "envs.py": "NAMES = ()\n",
    "platform.py": "class NPUPlatform:\n    pass\n",
    "utils.py": "def refresh_block_size(vllm_config):\n    vllm_config.block_size = 128\n",
    "models/__init__.py": "",
    "models/deepseek_v4.py": "class Model:\n    pass\n",
    "core/__init__.py": "",
    "patch/__init__.py": "",
    "patch/platform/__init__.py": "",
    "patch/worker/__init__.py": "",
    "worker/__init__.py": "",
    "worker/npu_input_batch.py": (
        "from vllm_ascend.worker.block_table import MultiGroupBlockTable\n\n\n"
        "def make():\n    return MultiGroupBlockTable(max_num_reqs=1, kernel_sizes=None)\n"
    ),
}
# Modules of vllm-ascend that serve our modules where ours of that name stay out.
_SERVING = {
    "core/kv_cache_interface.py": (
        "class AscendMLAAttentionSpec:\n    pass\n\n\nclass AscendSlidingWindowMLASpec:\n    pass\n"
    ),
    "worker/block_table.py": "class MultiGroupBlockTable:\n    pass\n",
}


def files_of(release: Release) -> dict[str, str]:
    """Return the files of a checkout of a release: path in the package -> content."""
    return {
        **_COMMON,
        **{path: f"import {module}  # noqa\n" for path, module in release.hooks.items()},
        **{path: text for path, text in _SERVING.items() if path in release.left_out},
        **{
            _path_of(target): _state(target, spec) for target, spec in release.pooled_states.items()
        },
        **{path: f"# the original {path}\n" for path in (*release.replaced, *release.extended)},
    }


def _path_of(target: str) -> str:
    return f"{target.partition(':')[0].removeprefix('vllm_ascend.').replace('.', '/')}.py"


def _state(target: str, spec: str) -> str:
    name, _, method = target.partition(":")[2].partition(".")
    return f"class {name}:\n    def {method}(self, vllm_config):\n        return {spec}()\n"


FILES = files_of(SUPPORTED[0])


def make_checkout(root: Path, release: Release = SUPPORTED[0]) -> Path:
    """Write a checkout of a release and return its root."""
    for path, text in files_of(release).items():
        file = root / "vllm_ascend" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (root / "vllm_ascend" / "worker" / "block_table.py").chmod(0o640)
    os.utime(root / "vllm_ascend" / "worker" / "block_table.py", ns=(10**18, 10**18))
    (root / "setup.py").write_text("# not of the package\n")
    return root


def know(root: Path, patch: pytest.MonkeyPatch, vllm: str = SUPPORTED[0].vllm) -> None:
    """Make this checkout the only known head, with one patch of its ``utils.py``.

    Args:
        root: The checkout.
        patch: Undoes it.
        vllm: The release of vLLM that the head is made for.
    """
    package = root / "vllm_ascend"
    target = "vllm_ascend.utils:refresh_block_size"
    digest = source_digest_in_file(package / "utils.py", "refresh_block_size")
    assert digest is not None
    patches = (ListedPatch(target, "block-size", CHANGED, why="It forces 128.", digests=(digest,)),)
    for listing in (overlay_functions, overlay_checkout, overlay_plan):
        patch.setattr(listing, "listed_patches", lambda release: patches)
    release = find_release(vllm)
    functions = overlay_functions.rested_on(package, release) if release else {}
    heads = (KnownHead(COMMIT, f"{vllm}rc1", vllm, dict(digest_files(package)), functions),)
    for module in (overlay_heads, overlay_checkout):
        patch.setattr(module, "known_heads", lambda: heads)


def snapshot(root: Path) -> dict[str, tuple]:
    """Return everything below a directory: content, mode and time of every file, every folder."""
    found: dict[str, tuple] = {}
    for path in sorted(root.rglob("*")):
        if "__pycache__" in path.parts:
            continue
        entry = path.lstat()
        kind = (entry.st_mode,)
        if path.is_symlink():
            kind += (os.readlink(path),)
        elif path.is_file():
            kind += (path.read_bytes(), entry.st_mtime_ns)
        found[path.relative_to(root).as_posix()] = kind
    return found
