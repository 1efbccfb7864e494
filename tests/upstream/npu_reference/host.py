# SPDX-License-Identifier: Apache-2.0
"""A folder that is to ``vllm serve`` what the host of an A3 is: vllm-ascend, an NPU, a model.

The NPU is the reference device; vllm-ascend is the release's own code, overlaid, and announced to
vLLM by the release's own entry points.
"""

from __future__ import annotations

import ast
import os
import shlex
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from tests.upstream.npu_reference.checkpoint import publish
from tests.upstream.npu_reference.dspark_checkpoint import publish_dspark
from tests.upstream.npu_reference.processes import LENGTHS, SHAPE, hugging_face_answers
from tests.upstream.sources import REPOSITORY, checkout_here, put_overlay, release_here
from vllm_ascend.prefix_cache_config import child_environment
from vllm_ascend_evaluation.models.tiny.maker import make_tiny_model

BEST = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1", "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
# vllm-ascend's, but for the one that writes a file for its profiler into the user's home, and the
# one that loads weights from other NPUs. Not this project's own, which may be installed beside:
# over a checkout it is part of vllm-ascend.
PLUGINS = ("ascend", "ascend_kv_connector", "ascend_model")
_SITE = """\
from pathlib import Path

from tests.upstream.npu_reference.autoload import begin

begin(Path({checkout!r}), Path({torch_binding!r}))
"""


class Host(NamedTuple):
    """Where everything lies.

    Attributes:
        checkout: The overlaid vllm-ascend.
        site: What every Python of the host finds first: modules, and packages' descriptions.
        model: The tiny model, as published.
    """

    checkout: Path
    site: Path
    model: Path

    def environment(self, switches: dict[str, str]) -> dict[str, str]:
        """Return all variables of a process on the host, with these of the prefix cache."""
        return child_environment(self.variables() | switches)

    def variables(self) -> dict[str, str]:
        """Return what the host sets, as CANN's ``set_env.sh`` does on a real one."""
        # ``tests`` is the repository's, ``vllm_ascend`` the checkout's.
        path = (self.site, self.checkout, REPOSITORY, *filter(None, [os.environ.get("PYTHONPATH")]))
        return {
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            # Nor does ``python -m vllm_ascend`` take the repository's in the folder of that.
            "PYTHONSAFEPATH": "1",
            "VLLM_PLUGINS": ",".join(PLUGINS),
            "OMP_NUM_THREADS": "1",
            "TORCHDYNAMO_DISABLE": "1",  # it would compile for the NPU
        }


def make_host(folder: Path, *, dspark: bool = False) -> Host:
    """Make a host in a folder, anew: what is there is removed.

    Args:
        folder: Where.
        dspark: Whether the model drafts with DSpark, as DeepSeek-V4-Flash-0731 does; some of its
            drafts are right for the prompts of :func:`processes.hugging_face_answers`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    host = Host(folder / "vllm-ascend", folder / "site", folder / "dsv4-tiny")
    source = checkout_here()
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    # Without its tests: they would hide those of the repository.
    shutil.copytree(source / "vllm_ascend", host.checkout / "vllm_ascend", ignore=ignored)
    put_overlay(host.checkout)
    _make_site(host, source)
    tiny, published = folder / "tiny", folder / "published"
    make_tiny_model(tiny, **SHAPE)
    if dspark:
        answers = [answer for _, answer in hugging_face_answers(tiny, LENGTHS)]
        publish_dspark(publish(tiny, published), host.model, answers)
        shutil.rmtree(published)
    else:
        publish(tiny, host.model)
    shutil.rmtree(tiny)
    lines = [
        f"export {name}={shlex.quote(value)}" for name, value in (host.variables() | BEST).items()
    ]
    (folder / "set_env.sh").write_text("\n".join([*lines, ""]), encoding="utf-8")
    return host


def _make_site(host: Host, source: Path) -> None:
    described = host.site / f"vllm_ascend-{release_here()}.dist-info"
    described.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: vllm-ascend\nVersion: {release_here()}\n"
    (described / "METADATA").write_text(metadata, encoding="utf-8")
    points = [
        line
        for group, entries in _entry_points(source / "setup.py").items()
        for line in (f"[{group}]", *entries)
    ]
    (described / "entry_points.txt").write_text("\n".join([*points, ""]), encoding="utf-8")
    binding = source / "csrc" / "torch_binding.cpp"
    hook = _SITE.format(checkout=str(host.checkout), torch_binding=str(binding))
    (host.site / "sitecustomize.py").write_text(hook, encoding="utf-8")


def _entry_points(setup: Path) -> dict[str, Any]:
    """Return what a ``setup.py`` declares, without running it."""
    for node in ast.walk(ast.parse(setup.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "entry_points":
            return ast.literal_eval(node.value)
    raise LookupError(f"{setup} declares no entry points")
