# SPDX-License-Identifier: Apache-2.0
"""Run over a plain checkout on the CPU: what its AscendStore stores behind a hit.

Of releases whose plain engine has a hit of its own here: 0.20.2rc1's has none so deep.
"""

from __future__ import annotations

import pytest

from tests.upstream.npu_reference.check_whole_runs_of_ascend_store import (
    group_of,
    load,
    promise_all,
    store,
    store_what_was_lost,
)
from tests.upstream.npu_reference.file_store import FileStore, keys_in
from tests.upstream.npu_reference.tags import TagError


def test_null_blocks_are_stored_as_pages_of_windows(tmp_path):
    store_what_was_lost(tmp_path)
    with pytest.raises(TagError, match="read"):
        load(tmp_path)


def test_a_page_that_was_not_loaded_is_read(tmp_path):
    """It is gone when it is to be loaded; the look-up has seen it."""
    store(tmp_path)
    FileStore.folder = tmp_path / "pool"
    (gone, *_) = (key for key in keys_in(FileStore.folder) if group_of(key) == 0)
    FileStore.path(gone).unlink()
    with pytest.raises(TagError, match=r"read .*, group 0,"):
        load(tmp_path, promise_all)
