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
        assert table[target].upstream_sha256
    assert all(patch.upstream_sha256 == () for patch in table.values() if isinstance(patch, Add))


@each_release
def test_only_who_holds_an_original_is_changed_with_it(release):
    holders = {a for p in release.table(PATCHES) if isinstance(p, Wrap) for a in p.aliases}
    assert not holders & set(release.absent)


@each_release
def test_no_release_lacks_what_a_switch_cannot_do_without(release):
    """The installer does not ask: whatever is set, the patches behind it are there."""
    needed = {"dsv4-layout", "partial-hits"}
    assert not needed & {patch.feature for patch in PATCHES if patch.target in release.absent}


def test_what_one_release_lacks_another_may_have_to_have_changed():
    target = "vllm.v1.core.kv_cache_manager:KVCacheManager.take_kv_cache_block_copies"
    taken = {
        release.vllm: [type(patch) for patch in release.table(PATCHES) if patch.target == target]
        for release in SUPPORTED
    }
    kinds = {"0.20.2": Add, "0.23.0": Add, "0.30.0": Wrap, "0.31.0": Wrap, "0.32.0": Wrap}
    assert taken == {release: [kind] for release, kind in kinds.items()}


def test_a_build_is_the_release_that_it_is_built_from():
    for release in SUPPORTED:
        assert find_release(release.vllm) is release
        assert find_release(f"{release.vllm}+cpu") is release
        assert release.vllm in describe_supported()
    for other in ("0.20.20", "0.20.2.post1", "0.20.2rc1", "0.24.0"):
        assert find_release(other) is None
