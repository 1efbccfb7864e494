# SPDX-License-Identifier: Apache-2.0
"""Names are found where an import would bind them."""

from __future__ import annotations

import pytest

from tests.ut.evaluation.port_report.trees import make_modules
from vllm_ascend_evaluation.port_report.modules import (
    BOUND,
    GONE,
    IMPORTED,
    MODULE_GONE,
    UNREADABLE,
)
from vllm_ascend_evaluation.port_report.moves import find_moved

TREE = {
    "a.py": """
        import os.path
        import typing as t
        from typing import TYPE_CHECKING, overload

        from vllm.b import plain, renamed as other
        from .b import relative
        from vllm.star import *

        if TYPE_CHECKING:
            from vllm.b import only_for_types
        else:
            from vllm.b import at_run_time

        @overload
        def overloaded(a: int) -> int: ...
        @t.overload
        def overloaded(a: str) -> str: ...
        def overloaded(a): return a

        if os.name == "nt":
            def conditional(): return 1
        else:
            def conditional(): return 2

        try:
            from fast import tried
        except ImportError:
            async def tried(): return 1

        class Outer(Base := object):
            field: int
            one, two = 1, 2

            class Inner:
                def method(self): ...

            @property
            def value(self): return 1
            @value.setter
            def value(self, new): ...
        """,
    "b.py": """
        class Root:
            def inherited(self, a): ...

        def plain(): ...
        def renamed(): ...
        def relative(): ...
        def at_run_time(): ...
        """,
    "star.py": "def starred(): ...\ndef _hidden(): ...\n",
    "package/__init__.py": "from .child import inside\nfrom ..b import Root as R\n",
    "package/child.py": """
        from vllm.b import Root

        def inside(): ...

        class Child(Root): ...
        class Grandchild(Child[int]): ...
        """,
    "package.py": "def never_imported(): ...\n",
    "broken.py": "def f(:\n",
}


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    return make_modules(tmp_path_factory.mktemp("tree"), TREE)


@pytest.mark.parametrize(
    ("target", "num_nodes"),
    [
        ("vllm.a:overloaded", 1),
        ("vllm.a:conditional", 2),
        ("vllm.a:tried", 1),
        ("vllm.a:Outer", 1),
        ("vllm.a:Outer.field", 1),
        ("vllm.a:Outer.two", 1),
        ("vllm.a:Outer.value", 2),
        ("vllm.a:Outer.Inner.method", 1),
        ("vllm.package.child:inside", 1),
    ],
)
def test_definitions_are_found_in_branches_and_classes(modules, target, num_nodes):
    found = modules.look_up(target)
    assert (found.how, len(found.nodes)) == (BOUND, num_nodes)


@pytest.mark.parametrize(
    ("target", "origin"),
    [
        ("vllm.a:plain", "vllm.b:plain"),
        ("vllm.a:other", "vllm.b:renamed"),
        ("vllm.a:relative", "vllm.b:relative"),
        ("vllm.a:at_run_time", "vllm.b:at_run_time"),
        ("vllm.a:starred", "vllm.star:starred"),
        ("vllm.a:os", "os.path"),
        ("vllm.package:inside", "vllm.package.child:inside"),
        ("vllm.package:R.inherited", "vllm.b:Root.inherited"),
    ],
)
def test_imports_tell_where_a_name_is_from(modules, target, origin):
    found = modules.look_up(target)
    assert (found.how, found.origin) == (IMPORTED, origin)


@pytest.mark.parametrize(
    ("target", "how"),
    [
        ("vllm.a:only_for_types", GONE),
        ("vllm.a:renamed", GONE),
        ("vllm.a:_hidden", GONE),
        ("vllm.a:Outer.method", GONE),
        ("vllm.package.child:Child.inherited", GONE),
        ("vllm.package:never_imported", GONE),
        ("vllm.nowhere:f", MODULE_GONE),
        ("vllm.broken:f", UNREADABLE),
    ],
)
def test_what_an_import_would_not_bind_is_not_found(modules, target, how):
    assert modules.look_up(target).how == how


@pytest.mark.parametrize(
    ("target", "where"),
    [
        ("vllm.package:inside", "vllm.package.child:inside"),
        ("vllm.package.child:Grandchild.inherited", "vllm.b:Root.inherited"),
        ("vllm.a:starred", "vllm.star:starred"),
    ],
)
def test_imports_and_base_classes_are_followed(modules, target, where):
    found = modules.resolve(target)
    assert (found.how, found.where) == (BOUND, where)


def test_circles_of_imports_and_of_classes_end(tmp_path):
    circle = {
        "a.py": "from vllm.b import *\nfrom vllm.b import f\nclass A(A): ...\n",
        "b.py": "from vllm.a import *\nfrom vllm.a import f\n",
    }
    modules = make_modules(tmp_path, circle)
    assert modules.resolve("vllm.a:f").how == IMPORTED
    assert modules.look_up("vllm.a:g").how == GONE
    assert modules.resolve("vllm.a:A.f").how == GONE


@pytest.mark.parametrize(
    ("target", "places"),
    [
        ("vllm.old:moved", ("vllm.new:moved",)),
        ("vllm.old:Class.method", ("vllm.new:Class.method",)),
        ("vllm.old:Class.lost", ("vllm.new:Class",)),
        ("vllm.here:Child.method", ("vllm.new:Class.method",)),
        ("vllm.old:namesake", ()),
        ("vllm.old:nowhere", ()),
    ],
)
def test_what_is_gone_is_looked_for_elsewhere(tmp_path, target, places):
    """What another module had in the base as well has not moved there."""
    new = """
        def moved(): ...
        def namesake(): ...
        class Class:
            def method(self): ...
        """
    tree = {"new.py": new, "here.py": "from vllm.new import Class\nclass Child(Class): ...\n"}
    base = {"new.py": "def namesake(): ...\n", "old.py": "def namesake(): ...\n"}
    modules = make_modules(tmp_path / "tree", tree)
    old = make_modules(tmp_path / "base", base)
    assert find_moved(modules, [target], old) == {target: places}
