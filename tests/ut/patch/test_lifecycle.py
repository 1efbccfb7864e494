# SPDX-License-Identifier: Apache-2.0
"""The real table in fresh processes: import order, twice, undone, through vLLM's plugin loader.

What is asserted is derived from the table, so a new patch is covered as soon as it is declared.
"""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from vllm_ascend.patch import platform
from vllm_ascend.patch.table import Add, Override
from vllm_ascend.prefix_cache_config import child_environment
from vllm_ascend.releases import running_release

REPOSITORY = Path(__file__).parents[3]

PATCHES = tuple(
    patch
    for patch in running_release().table(platform.PATCHES)
    if not isinstance(patch, Override)  # nothing is set
)
# Where a patch shows: module global or class attribute -> target that it must agree with.
HOLDERS = {
    holder: patch.target
    for patch in PATCHES
    for holder in (patch.target, *getattr(patch, "aliases", ()))
}
ADDED = [patch.target for patch in PATCHES if isinstance(patch, Add)]

PRELUDE = """
import importlib, sys

ABSENT = object()

def value(holder):
    module, _, path = holder.partition(":")
    owner = importlib.import_module(module)
    *owners, name = path.split(".")
    for part in owners:
        owner = getattr(owner, part)
    return vars(owner).get(name, ABSENT)

def snapshot():
    values = {holder: value(holder) for holder in HOLDERS}
    for alias, target in HOLDERS.items():
        assert values[alias] is values[target], f"{alias} differs from {target}"
    return values

def assert_patched(values, unpatched):
    for holder in HOLDERS:
        assert values[holder] is not ABSENT, f"{holder} is missing"
        assert values[holder] is not unpatched[holder], f"{holder} is not patched"

def assert_unpatched(values):
    for holder, attribute in values.items():
        assert (attribute is ABSENT) == (holder in ADDED), holder
        assert attribute is ABSENT or attribute.__module__.startswith("vllm."), holder

def assert_same(values, expected):
    for holder in HOLDERS:
        assert values[holder] is expected[holder], holder
"""

CASES = {
    # Everything that takes part is imported first, so every holder has the original.
    "core imported before": """
        unpatched = snapshot()
        assert "vllm_ascend.patch.platform" not in sys.modules
        assert_unpatched(unpatched)
        import vllm_ascend.patch.platform as platform
        patched = snapshot()
        assert_patched(patched, unpatched)
        # twice
        installation = platform.install_all()
        assert platform.install_all() is installation
        assert_same(snapshot(), patched)
        # undone, also twice
        installation.undo()
        assert_same(snapshot(), unpatched)
        installation.undo()
        assert_same(snapshot(), unpatched)
        # undone and installed again
        assert platform.install_all() is not installation
        assert_patched(snapshot(), unpatched)
    """,
    # As every vLLM process does it. The patches come first; holders import the replacements, and
    # lose them again.
    "as a plugin, core imported after": """
        import vllm.envs
        from vllm.plugins import load_general_plugins
        load_general_plugins()
        assert "vllm_ascend.patch.platform" in sys.modules, "the entry point is not installed"
        import vllm_ascend, vllm_ascend.patch.platform as platform
        patched = snapshot()
        vllm_ascend.register()
        assert_same(snapshot(), patched)
        platform.install_all().undo()
        unpatched = snapshot()
        assert_unpatched(unpatched)
        assert_patched(patched, unpatched)
        platform.install_all()
        assert_patched(snapshot(), unpatched)
        platform.install_all().undo()
        assert_same(snapshot(), unpatched)
        from vllm_ascend.prefix_cache_config import VARIABLES
        assert {v.name for v in VARIABLES} <= set(vllm.envs.environment_variables)
        vllm.envs.validate_environ(hard_fail=True)
    """,
}


def run(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess:
    variables = child_environment({"VLLM_LOGGING_LEVEL": "ERROR", **environment})
    variables.pop("VLLM_ASCEND_UPSTREAM", None)  # the tests' own, which vLLM does not know
    return subprocess.run(
        [sys.executable, "-c", f"{HOLDERS=}\n{ADDED=}\n{PRELUDE}{textwrap.dedent(code)}"],
        env=variables,
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


def test_beside_vllm_ascend_the_plugin_ends_the_process_with_one_sentence(tmp_path):
    """An import that fails vLLM would only log: it would serve on, without us."""
    code = "from vllm.plugins import load_general_plugins; load_general_plugins()"
    info = tmp_path / "vllm_ascend-0.20.2rc1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-ascend\nVersion: 0.20.2rc1\n")
    result = run(code, {"PYTHONPATH": str(tmp_path)})
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("RuntimeError: vllm-ascend-backport cannot be installed beside")
