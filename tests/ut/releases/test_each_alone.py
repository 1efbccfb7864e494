# SPDX-License-Identifier: Apache-2.0
"""A release stands in one file, which can be deleted: no other one knows of it."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vllm_ascend.releases
from vllm_ascend.prefix_cache_config import child_environment
from vllm_ascend.releases import SUPPORTED, Release, running_release

FOLDER = Path(vllm_ascend.releases.__file__).parent
REPOSITORY = FOLDER.parents[1]
MODULES = {release.vllm: f"v{release.vllm.replace('.', '_')}" for release in SUPPORTED}
each_release = pytest.mark.parametrize("release", SUPPORTED, ids=lambda release: release.vllm)

# The package of releases without the other files, in the place of ours.
ONLY = """
import importlib.util, sys
import vllm_ascend
folder, vllm = sys.argv[1:]
spec = importlib.util.spec_from_file_location(
    "vllm_ascend.releases", f"{folder}/__init__.py", submodule_search_locations=[folder]
)
sys.modules[spec.name] = vllm_ascend.releases = importlib.util.module_from_spec(spec)
spec.loader.exec_module(vllm_ascend.releases)
(release,) = vllm_ascend.releases.SUPPORTED
assert release.vllm == vllm == vllm_ascend.releases.describe_supported()
assert release.digests and release.native
"""

# And without the rooms that go with the last release whose blocks count rows: an engine that hits.
ENGINE = (
    ONLY
    + """
class Gone:
    def find_spec(self, name, path=None, target=None):
        gone = ("row_layout", "worker", "releases.blocks_of_rows")
        if name.removeprefix("vllm_ascend.").startswith(gone):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Gone())
import vllm_ascend.patch.platform
import vllm_ascend.patch.worker
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.core.scheduler import CachingScheduler
from vllm_ascend.dry_run.layouts import dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler, make_request
from vllm_ascend.dry_run.worker import SamplingWorker

scheduler = build_scheduler(dsv4_flash_a3(128), SchedulerOptions(num_blocks=2000))
worker = SamplingWorker(scheduler)
assert isinstance(scheduler, CachingScheduler)
assert isinstance(scheduler.kv_cache_manager.coordinator, AscendHybridKVCacheCoordinator)
for name, hit in (("first", 0), ("second", 4992)):
    scheduler.add_request(make_request(scheduler, name, list(range(5000)), 2))
    found = 0
    while scheduler.requests:
        output = scheduler.schedule()
        found += sum(new.num_computed_tokens for new in output.scheduled_new_reqs)
        scheduler.update_from_output(output, worker.execute(output))
    assert found == hit, found
"""
)


def test_there_is_a_file_for_each():
    assert {file.stem for file in FOLDER.glob("v*.py")} == set(MODULES.values())


@each_release
def test_a_release_inherits_and_imports_nothing_of_another(release):
    others = set(MODULES.values()) - {MODULES[release.vllm]}
    for base in type(release).__mro__:
        assert base.__module__.rpartition(".")[2] not in others
    tree = ast.parse((FOLDER / f"{MODULES[release.vllm]}.py").read_text())
    named = {alias.name for node in ast.walk(tree) for alias in getattr(node, "names", ())}
    named |= {getattr(node, "module", None) or "" for node in ast.walk(tree)}
    assert not {name.rpartition(".")[2] for name in named if isinstance(name, str)} & others


@each_release
def test_what_is_shared_names_no_release(release):
    for file in FOLDER.glob("*.py"):
        if file.stem not in MODULES.values():
            text = file.read_text()
            assert MODULES[release.vllm] not in text and type(release).__name__ not in text


@pytest.fixture
def alone(tmp_path):
    """Return what makes a copy of the package of releases with the file of one alone."""

    def copy(release: Release) -> Path:
        others = [f"{module}.py" for vllm, module in MODULES.items() if vllm != release.vllm]
        ignored = shutil.ignore_patterns("__pycache__", *others)
        return Path(shutil.copytree(FOLDER, tmp_path / "releases", ignore=ignored))

    return copy


@each_release
def test_without_the_files_of_the_others_a_release_is_whole(release, alone):
    arguments = [sys.executable, "-c", ONLY, str(alone(release)), release.vllm]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def path_of(release: Release) -> str:
    """Return where Python finds a release: here, or as `make other-vllm` unpacks it."""
    if release is running_release():
        return os.environ.get("PYTHONPATH", "")
    sources = REPOSITORY / ".venv-vllm" / release.vllm
    assert (sources / "vllm").is_dir(), f"no sources of vLLM {release.vllm}: run `make other-vllm`"
    return f"{sources}:{REPOSITORY}"


@pytest.mark.parametrize(
    "release", [r for r in SUPPORTED if not r.counts_rows], ids=lambda release: release.vllm
)
def test_where_blocks_count_tokens_the_rooms_for_rows_can_go(release, alone):
    environment = {
        "PYTHONPATH": path_of(release),
        "VLLM_ASCEND_APPLY_DSV4_PATCH": "1",
        "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    done = subprocess.run(
        [sys.executable, "-c", ENGINE, str(alone(release)), release.vllm],
        env=child_environment(environment),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
