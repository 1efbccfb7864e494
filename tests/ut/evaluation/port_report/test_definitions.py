# SPDX-License-Identifier: Apache-2.0
"""Two definitions are compared by what they do and how they are called, not by how they look."""

from __future__ import annotations

import ast
import importlib
import sys
import textwrap

import pytest

from vllm_ascend.patch.table import source_digest as digest_of_imported
from vllm_ascend.patch.upstream.source import definition_digest
from vllm_ascend_evaluation.port_report.definitions import (
    BODY,
    SAME,
    SIGNATURE,
    Comparison,
    compare,
    has_parameter,
    without_docstrings,
)


def parsed(text: str) -> list[ast.stmt]:
    return without_docstrings(ast.parse(textwrap.dedent(text))).body


def compared(old: str, new: str) -> Comparison:
    return compare(parsed(old), parsed(new))


@pytest.mark.parametrize(
    "new",
    [
        'def f(a, b=1):\n    "Another docstring."\n    return a + b\n',
        "def f(a, b = 1):  # a comment\n\n    return (a +\n        b)\n",
        "def f(\n    a,\n    b=1,\n):\n    return a + b\n",
    ],
    ids=["docstring", "comment and layout", "lines"],
)
def test_docstrings_comments_and_layout_do_not_count(new):
    assert compared("def f(a, b=1):\n    return a + b\n", new) == Comparison(SAME)


def test_docstrings_of_what_is_defined_inside_do_not_count():
    old = "class A:\n    def f(self):\n        def g():\n            'Old.'\n            return 1\n"
    assert compared(old, old.replace("Old", "New")).status == SAME


def test_a_string_that_is_no_docstring_counts():
    assert compared("def f():\n    return 'a'", "def f():\n    return 'b'").status == BODY


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("a, b", "a, c", Comparison(SIGNATURE, came=("c",), went=("b",))),
        ("a, *b", "a, **c", Comparison(SIGNATURE, came=("**c",), went=("*b",))),
        ("a", "a, *, b", Comparison(SIGNATURE, came=("b",))),
        ("a, b", "b, a", Comparison(SIGNATURE, changed=("another order",))),
        ("a", "a=1", Comparison(SIGNATURE, changed=("a: untyped = 1, was untyped",))),
        ("a: int", "a: str", Comparison(SIGNATURE, changed=("a: str, was int",))),
        (
            *("a", "*, a"),
            Comparison(SIGNATURE, changed=("a: by keyword only untyped, was untyped",)),
        ),
        (
            *("a", "a, /"),
            Comparison(SIGNATURE, changed=("a: by position only untyped, was untyped",)),
        ),
    ],
)
def test_parameters_that_came_went_or_changed_are_named(old, new, expected):
    assert compared(f"def f({old}): return 1", f"def f({new}): return 1") == expected


def test_what_is_returned_is_part_of_a_signature():
    """Callers unpack it: a tuple of three in the place of two breaks each of them."""
    found = compared("def f() -> tuple[int, int]: ...", "def f() -> tuple[int, int, int]: ...")
    assert found.status == SIGNATURE
    assert found.changed == ("returns tuple[int, int, int], was tuple[int, int]",)


@pytest.mark.parametrize(
    ("new", "told"),
    [
        ("async def f(a): return 1", "async, a function, was a function"),
        ("@staticmethod\ndef f(a): return 1", "a staticmethod, was a function"),
        ("@functools.cached_property\ndef f(a): return 1", "a cached_property, was a function"),
        ("class f: pass", "a class, was a function"),
        ("f = g", "a value, was a function"),
    ],
)
def test_another_kind_is_another_signature(new, told):
    assert compared("def f(a): return 1", new) == Comparison(SIGNATURE, changed=(told,))


def test_a_decorator_that_does_not_change_the_call_is_another_body():
    assert compared("def f(a): return 1", "@cache\ndef f(a): return 1").status == BODY


def test_all_branches_are_compared():
    old = "def f(a): return 1\ndef f(a): return 2"
    assert compared(old, old).status == SAME
    assert compared(old, old.replace("1", "3")).status == BODY
    other = compared(old, old.replace("f(a)", "f(b)", 1))
    assert other == Comparison(SIGNATURE, changed=("other branches or parts of a property",))


def test_of_a_class_members_are_named():
    found = compared(
        "class A(B):\n    x: int\n    def f(self): ...", "class A(B):\n    x: int\n    y: int = 1"
    )
    assert found == Comparison(BODY, came=("y",), went=("f",))


def test_a_parameter_is_found_in_a_function_and_in_a_constructor():
    assert has_parameter(parsed("def f(a, *, b): ..."), "b")
    assert not has_parameter(parsed("def f(a): ..."), "b")
    assert has_parameter(parsed("class A:\n    def __init__(self, a): ..."), "a")


def test_the_digest_is_that_of_the_imported_function(tmp_path, monkeypatch):
    """Decorators belong to it, and so do docstrings and comments."""
    text = textwrap.dedent('''
        class A:
            @classmethod
            def f(cls, a):
                """Docstring."""
                # A comment.
                return a
        ''')
    (tmp_path / "module_to_digest.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("module_to_digest")
    (node,) = ast.parse(text).body[0].body
    assert definition_digest(text.splitlines(keepends=True), node) == digest_of_imported(module.A.f)
    del sys.modules["module_to_digest"]
