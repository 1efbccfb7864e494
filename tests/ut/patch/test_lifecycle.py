# SPDX-License-Identifier: Apache-2.0
"""The real table in fresh processes: import order, twice, undone, through vLLM's plugin loader.

What is asserted is derived from the table, so a new patch is covered as soon as it is declared.
"""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from vllm_ascend.envs import child_environment

REPOSITORY = Path(__file__).parents[3]

PRELUDE = """
import importlib, sys

def value(target):
    module, _, path = target.partition(":")
    owner = importlib.import_module(module)
    *owners, name = path.split(".")
    for part in owners:
        owner = getattr(owner, part)
    return vars(owner).get(name)

def targets(PATCHES):
    for patch in PATCHES:
        yield patch.target
        yield from getattr(patch, "aliases", ())

def is_ours(attribute):
    function = getattr(attribute, "__func__", attribute)
    return not callable(function) or function.__module__.startswith("vllm_ascend.")
"""

CASES = {
    # Everything that takes part is imported first, so every holder has the original.
    "core imported before": """
        import vllm.v1.core.sched.scheduler, vllm.v1.engine.core, vllm.v1.simple_kv_offload.manager
        import vllm_ascend.patch.platform as platform
        ours = {t: value(t) for t in targets(platform.PATCHES)}
        assert all(is_ours(v) for v in ours.values()), ours
        # twice
        assert platform.install_all() is platform.install_all()
        assert {t: value(t) for t in ours} == ours
        # undone and installed again
        platform.install_all().undo()
        theirs = {t: value(t) for t in ours}
        added = {p.target for p in platform.PATCHES if type(p).__name__ == "Add"}
        for target, attribute in theirs.items():
            assert (attribute is None) == (target in added), target
            assert attribute is None or attribute.__module__.startswith("vllm."), target
        platform.install_all()
        assert all(is_ours(value(t)) for t in ours)
    """,
    # The patches come first; holders import the replacements.
    "core imported after": """
        import vllm_ascend.patch.platform as platform
        import vllm.v1.engine.core, vllm.v1.simple_kv_offload.manager
        for target in targets(platform.PATCHES):
            assert is_ours(value(target)), target
    """,
    # As every vLLM process does it.
    "as a plugin": """
        import vllm.envs
        from vllm.plugins import load_general_plugins
        load_general_plugins()
        assert "vllm_ascend.patch.platform" in sys.modules, "the entry point is not installed"
        import vllm_ascend, vllm_ascend.patch.platform as platform
        vllm_ascend.register()
        for target in targets(platform.PATCHES):
            assert is_ours(value(target)), target
        from vllm_ascend.envs import VARIABLES
        assert {v.name for v in VARIABLES} <= set(vllm.envs.environment_variables)
        vllm.envs.validate_environ(hard_fail=True)
    """,
}


def run(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        env=child_environment({"VLLM_LOGGING_LEVEL": "ERROR", **environment}),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("case", CASES)
def test_lifecycle(case):
    result = run(CASES[case], {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1"})
    assert result.returncode == 0, result.stderr


def test_a_wrong_value_stops_the_plugin_before_anything_is_patched():
    code = """
        import vllm_ascend
        try:
            vllm_ascend.register()
        except ValueError as error:
            assert "VLLM_ASCEND_APPLY_DSV4_PATCH='maybe'" in str(error)
            assert "vllm_ascend.patch.platform" not in sys.modules
        else:
            raise SystemExit("not refused")
    """
    result = run(code, {"VLLM_ASCEND_APPLY_DSV4_PATCH": "maybe"})
    assert result.returncode == 0, result.stderr


def test_beside_vllm_ascend_the_import_fails_with_one_sentence(tmp_path):
    info = tmp_path / "vllm_ascend-0.20.2rc1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-ascend\nVersion: 0.20.2rc1\n")
    result = run("import vllm_ascend", {"PYTHONPATH": str(tmp_path)})
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: vllm-ascend-backport cannot be installed beside")
