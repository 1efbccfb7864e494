# SPDX-License-Identifier: Apache-2.0
"""What our code relies on in vLLM is recorded, and what is not is named."""

import ast
from pathlib import Path
from textwrap import dedent

import pytest

from tools.relied_on import __main__ as relied_on
from tools.relied_on.ours import Source, read_sources
from tools.relied_on.theirs import Vllm
from vllm_ascend.releases import SUPPORTED

THEIRS = """
class Base:
    def __init__(self):
        self._held = self.make()

    def make(self):
        return {}

    def free(self):
        return 1


class Manager(Base):
    def __init__(self):
        super().__init__()

    def _count(self):
        return 2
"""


def source(text: str, path: str = "core/new.py") -> Source:
    return Source(path, ast.parse(dedent(text)))


@pytest.fixture
def vllm(tmp_path: Path) -> Vllm:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("")
    (tmp_path / "vllm" / "managers.py").write_text(THEIRS)
    return Vllm(tmp_path)


def record_of(vllm: Vllm, monkeypatch, text: str) -> dict[str, list[str]]:
    monkeypatch.setattr(relied_on, "Vllm", lambda _: vllm)
    record = relied_on.relied_on(SUPPORTED[0], [source(text)])
    return {kind: list(digests) for kind, digests in record.items() if digests}


def test_all_that_is_relied_on_is_recorded(capsys):
    assert relied_on.main(["--check"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "kind", "target"),
    [
        (
            """
            from vllm.v1.core.block_pool import BlockPool

            def drop(pool: BlockPool, block):
                pool._maybe_evict_cached_block(block)
            """,
            "private",
            "vllm.v1.core.block_pool:BlockPool._maybe_evict_cached_block",
        ),
        (
            """
            from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager

            class Ours(SlidingWindowManager):
                def free(self, request_id):
                    super().free(request_id)
            """,
            "overridden",
            "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager.free",
        ),
    ],
)
def test_what_is_not_recorded_is_named(text, kind, target):
    release = SUPPORTED[0]
    sources = [*read_sources(relied_on.PACKAGE), source(text)]
    lines = relied_on.differences(release, relied_on.relied_on(release, sources))
    assert lines == [f"vLLM {release.vllm}, {kind}: {target} is not recorded"]


def test_a_constructor_that_is_skipped_is_recorded_with_its_bases_and_what_it_calls(
    vllm, monkeypatch
):
    text = """
    from vllm.managers import Manager

    class Ours(Manager):
        def __init__(self):
            {body}
    """
    called = record_of(vllm, monkeypatch, text.format(body="super().__init__()"))
    assert "skipped" not in called
    skipped = record_of(vllm, monkeypatch, text.format(body="self.x = 1"))["skipped"]
    assert skipped == [
        "vllm.managers:Base.__init__",
        "vllm.managers:Base.make",
        "vllm.managers:Manager.__init__",
    ]


def test_a_private_name_stands_for_what_defines_it_or_sets_it(vllm, monkeypatch):
    text = """
    from vllm import managers

    def look(manager):
        return manager._held, getattr(manager, "_count")
    """
    found = record_of(vllm, monkeypatch, text)
    assert found == {"private": ["vllm.managers:Base.__init__", "vllm.managers:Manager._count"]}


def test_a_change_of_what_is_recorded_is_named(vllm, tmp_path, monkeypatch):
    text = """
    from vllm.managers import Manager

    class Ours(Manager):
        def free(self):
            return super().free() + 1
    """
    monkeypatch.setattr(relied_on, "Vllm", lambda _: vllm)
    monkeypatch.setattr(relied_on, "file_of", lambda _: tmp_path / "record.json")
    release, recorded = SUPPORTED[0], {"overridden": {"vllm.managers:Base.free": "0" * 16}}
    (tmp_path / "record.json").write_text(str(recorded).replace("'", '"'))
    (line,) = relied_on.differences(release, relied_on.relied_on(release, [source(text)]))
    assert line == f"vLLM {release.vllm}, overridden: vllm.managers:Base.free has changed"


def test_a_private_name_of_nobody_is_named():
    text = """
    def f(x):
        return x._nobody_has_this_name
    """
    sources = [*read_sources(relied_on.PACKAGE), source(text)]
    assert relied_on.nobodys_names(sources) == ["_nobody_has_this_name"]
