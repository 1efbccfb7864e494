# SPDX-License-Identifier: Apache-2.0
"""What planning finds out beyond the table's own words, on fake modules."""

import dataclasses
import functools
import hashlib
import sys

import msgspec
import pytest

from vllm_ascend.patch.installer import Plan, plan
from vllm_ascend.patch.table import AddField, Patch, PatchError, Rebind, Wrap
from vllm_ascend.releases import Release

CORE = (
    "def free(blocks):\n    return blocks\n\n\nclass Pool:\n    def size(self):\n        return 1\n"
)
USER = (
    "from fakeplan.core import Pool, free\n\n\nclass Late:\n    def size(self):\n        return 1\n"
)
SIZE = hashlib.sha256(b"def size(self):\n    return 1\n").hexdigest()[:16]
FREE = hashlib.sha256(b"def free(blocks):\n    return blocks\n").hexdigest()[:16]
COMMON = {
    "feature": "f",
    "why": "because",
    "upstream": "somewhere",
    "remove_when": "vLLM has it itself",
}


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """The sources of a package ``fakeplan``, importable and forgotten after."""
    package = tmp_path / "fakeplan"
    package.mkdir()
    for name, source in {"__init__": "", "core": CORE, "user": USER}.items():
        (package / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield package
    for name in [name for name in sys.modules if name.split(".")[0] == "fakeplan"]:
        del sys.modules[name]


def wrap(target: str, digest: str, **kwargs) -> Wrap:
    arguments = {
        "replacement": lambda *args, original, **kwargs: "ours",
        "aliases": (),
        **kwargs,
    }
    return Wrap(target=target, upstream_sha256=(digest,), **COMMON, **arguments)


def wrap_size() -> Wrap:
    return wrap("fakeplan.core:Pool.size", SIZE)


def do_plan(*patches: Patch) -> Plan:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vllm.__version__", "0.20.2")
        return plan(patches)


def test_a_holder_that_planning_itself_imports_is_rebound(fake):
    """Else it would keep the original: it is imported after its alias was looked at."""
    first = wrap("fakeplan.core:free", FREE, aliases=("fakeplan.user:free",))
    installation = do_plan(first, wrap("fakeplan.user:Late.size", SIZE)).install()
    assert sys.modules["fakeplan.user"].free is sys.modules["fakeplan.core"].free
    assert sys.modules["fakeplan.core"].free([]) == "ours"
    installation.undo()


def test_the_same_thing_under_two_names_is_refused(fake):
    with pytest.raises(PatchError, match=r"Pool\.size is set twice"):
        do_plan(wrap_size(), wrap("fakeplan.user:Pool.size", SIZE))


def test_a_global_that_holds_a_method_is_a_holder_too(fake):
    with (fake / "user.py").open("a") as file:
        file.write("\n\nsize_of = Pool.size\n")
    import fakeplan.user  # noqa: F401

    with pytest.raises(PatchError, match=r"fakeplan\.user:size_of holds fakeplan\.core:Pool\.size"):
        do_plan(wrap_size())


def rebind(target: str, keepers: tuple[str, ...] = ()) -> Rebind:
    return Rebind(
        target=target,
        replacement=lambda blocks: "ours",
        upstream_sha256=(FREE,),
        keepers=keepers,
        **COMMON,
    )


def test_whoever_else_holds_what_is_replaced_must_be_known_to(fake):
    import fakeplan.user

    with pytest.raises(PatchError, match=r"fakeplan\.user:free holds fakeplan\.core:free and is "):
        do_plan(rebind("fakeplan.core:free"))
    known = (rebind("fakeplan.core:free", ("fakeplan.user:free", "fakeplan.later:free")),)
    installation = do_plan(*known).install()
    assert sys.modules["fakeplan.core"].free([]) == "ours"
    assert fakeplan.user.free([]) == []
    installation.undo()


def test_a_holder_that_is_replaced_as_well_needs_no_declaration(fake):
    import fakeplan.user  # noqa: F401

    assert len(do_plan(rebind("fakeplan.core:free"), rebind("fakeplan.user:free")).changes) == 2


class Proxy:
    """What wrapt's proxies do: they say that they are the function that they wrap."""

    def __init__(self, wrapped) -> None:
        self.__wrapped__ = wrapped

    @property
    def __class__(self):
        return type(self.__wrapped__)


def by_function(original):
    @functools.wraps(original)
    def traced(self):
        return original(self)

    return traced


@pytest.mark.parametrize("decorate", [by_function, Proxy])
def test_somebody_elses_wrapper_is_not_taken_for_the_original(fake, decorate):
    """It answers with the original's source, and a replacement would silently drop it."""
    from fakeplan.core import Pool  # type: ignore[import-not-found]

    Pool.size = decorate(Pool.size)
    with pytest.raises(PatchError, match=rf"Pool\.size is wrapped already, by {__name__}"):
        do_plan(wrap_size())


def test_a_wrapper_that_the_release_names_is_wrapped_in_turn(fake, monkeypatch):
    from fakeplan.core import Pool  # type: ignore[import-not-found]

    Pool.size = by_function(Pool.size)
    monkeypatch.setattr(Release, "wrappers", frozenset({__name__}))
    do_plan(wrap_size()).install()
    assert Pool().size() == "ours"


def test_where_a_subclass_has_taken_a_class_s_place_the_class_is_changed(fake):
    import fakeplan.core as core  # type: ignore[import-not-found]

    own = core.Pool
    core.Pool = type("BalancedPool", (own,), {})
    (change,) = do_plan(wrap_size()).changes
    assert change.owner is own


@pytest.mark.parametrize("decorator", ["functools.lru_cache", "decorators.traced"])
def test_decorators_of_its_own_and_of_the_standard_library_belong_to_the_original(fake, decorator):
    (fake / "decorators.py").write_text(
        "import functools\n\n\ndef traced(f):\n    @functools.wraps(f)\n"
        "    def wrapper(self):\n        return f(self)\n\n    return wrapper\n"
    )
    (fake / "core.py").write_text(
        "import functools\nfrom fakeplan import decorators\n\n\nclass Pool:\n"
        f"    @{decorator}\n    def size(self):\n        return 1\n"
    )
    source = f"@{decorator}\ndef size(self):\n    return 1\n"
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    assert len(do_plan(wrap("fakeplan.core:Pool.size", digest)).changes) == 1


MESSAGE = """
from dataclasses import dataclass

@dataclass
class Message:
    number: int = 1
"""


def add_field(target: str = "fakeplan.user:Message.note") -> AddField:
    return AddField(target=target, replacement=None, type=str | None, **COMMON)


def test_a_new_field_is_sent_and_received(fake):
    """As if it had been declared; and it can be taken back."""
    (fake / "user.py").write_text(MESSAGE)
    from fakeplan.user import Message  # type: ignore[import-not-found]

    before = dict(vars(Message))
    installation = do_plan(add_field()).install()
    message = Message(2)
    assert message.note is None
    message.note = "new"
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message)
    assert (received.number, received.note) == (2, "new")
    assert dataclasses.asdict(message) == {"number": 2, "note": "new"}
    assert dataclasses.replace(message, number=3).number == 3, "its constructor knows no note"
    installation.undo()
    assert {name: vars(Message)[name] for name in before} == before
    assert not hasattr(Message, "note")
    assert b"note" not in msgspec.msgpack.encode(message)


def test_a_dataclass_takes_several_new_fields(fake):
    (fake / "user.py").write_text(MESSAGE)
    from fakeplan.user import Message  # type: ignore[import-not-found]

    fields = (add_field(), add_field("fakeplan.user:Message.more"))
    installation = do_plan(*fields).install()
    message = Message(2)
    message.note, message.more = "new", "newer"
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message)
    assert (received.number, received.note, received.more) == (2, "new", "newer")
    installation.undo()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Message(2))) == {"number": 2}


def test_a_field_is_for_dataclasses(fake):
    with pytest.raises(PatchError, match=r"Pool\.note is not on a dataclass"):
        do_plan(add_field("fakeplan.core:Pool.note"))


def test_a_field_that_exists_is_refused(fake):
    (fake / "user.py").write_text(MESSAGE)
    with pytest.raises(PatchError, match=r"Message\.number exists already"):
        do_plan(add_field("fakeplan.user:Message.number"))
