# SPDX-License-Identifier: Apache-2.0
"""Every release says of every patch what becomes of it, and of nothing else."""

from collections import Counter

import pytest

from tools.patch_ledger import collect_patches
from vllm_ascend.patch.table import Add, Wrap
from vllm_ascend.releases import (
    SUPPORTED,
    Release,
    describe_supported,
    find_release,
    why_no_engine,
)
from vllm_ascend_evaluation.models import patches as cpu_patches

PATCHES = (*collect_patches(), *cpu_patches.PATCHES)
each_release = pytest.mark.parametrize("release", SUPPORTED, ids=lambda release: release.vllm)


def named_originals(release: Release) -> list[str]:
    return [f"{module}:{name}" for module, names in release.digests.items() for name in names]


@each_release
def test_a_release_names_only_what_is_patched_and_nothing_twice(release):
    said = Counter([*named_originals(release), *release.native, *release.absent])
    assert [target for target, count in said.items() if count > 1] == []
    aliases = {alias for patch in PATCHES if isinstance(patch, Wrap) for alias in patch.aliases}
    assert set(said) <= aliases | {patch.target for patch in PATCHES}


@each_release
def test_a_release_says_what_becomes_of_every_patch(release):
    """Of what is added it may say nothing, nor of what is changed elsewhere: it is not there."""
    added = {patch.target for patch in PATCHES if isinstance(patch, Add)}
    known = {*added, *named_originals(release), *release.native, *release.absent}
    unsaid = [p.target for p in PATCHES if not isinstance(p, Add) and p.target not in known]
    assert unsaid == []


@each_release
def test_the_table_has_what_is_taken_with_its_digests(release):
    table = {patch.target: patch for patch in release.table(PATCHES)}
    assert not table.keys() & {*release.native, *release.absent}
    for target in named_originals(release):
        assert table[release.moved.get(target, target)].upstream_sha256
    assert all(patch.upstream_sha256 == () for patch in table.values() if isinstance(patch, Add))


@each_release
def test_what_has_moved_is_changed_where_it_is(release):
    assert release.moved.keys() <= set(named_originals(release))
    assert not release.moved.keys() & {patch.target for patch in release.table(PATCHES)}


@each_release
def test_only_who_holds_an_original_is_changed_with_it(release):
    holders = {a for p in release.table(PATCHES) if isinstance(p, Wrap) for a in p.aliases}
    assert not holders & set(release.absent)


@each_release
def test_no_release_lacks_what_a_switch_cannot_do_without(release):
    """The installer does not ask: whatever is set, the patches behind it are there."""
    needed = {"dsv4-layout", "partial-hits"}
    assert not needed & {patch.feature for patch in PATCHES if patch.target in release.absent}


def test_nothing_is_changed_twice():
    assert [t for t, count in Counter(p.target for p in PATCHES).items() if count > 1] == []


def test_a_build_is_the_release_that_it_is_built_from():
    for release in SUPPORTED:
        assert find_release(release.vllm) is release
        assert find_release(f"{release.vllm}+cpu") is release
        assert release.vllm in describe_supported()
    for other in ("0.20.20", "0.20.2.post1", "0.20.2rc1", "0.24.0"):
        assert find_release(other) is None


def test_a_release_of_which_only_the_scheduler_is_tested_names_one_that_serves():
    told = {release.vllm: why for release in SUPPORTED if (why := why_no_engine(release))}
    assert told == {
        "0.33.0": "of vLLM 0.33.0 only the scheduler is tested with this prefix cache, and no "
        "engine: use vLLM 0.32.0"
    }
