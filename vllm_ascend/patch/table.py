# SPDX-License-Identifier: Apache-2.0
"""A patch is data: what it changes, how it knows that it may, why it exists, when it can go."""

from __future__ import annotations

import hashlib
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any


class PatchError(RuntimeError):
    """The running vLLM is not what the patches were written for; nothing was changed."""


@dataclass(frozen=True, kw_only=True)
class Patch:
    """What all kinds of patches have in common."""

    target: str  # "module:function" or "module:Class.attribute"
    replacement: Any  # see the subclasses
    feature: str  # an entry of vllm_ascend.patch.features
    why: str  # in a sentence
    upstream: str  # where the idea comes from
    # The vLLM requirement that makes the patch superfluous ("vllm>=0.23"), or, where no release is
    # known to, what would have to happen for it, in words.
    remove_when: str
    # What a vLLM has that makes the patch superfluous: "module:Class.name", or a parameter,
    # "module:Class.name(parameter)". None: no vLLM is known to have such a thing. Whether the
    # patch is left out there, a release says (vllm_ascend/releases).
    superseded_by: str | None = None
    # Every digest that the original's source may have in the release whose table this is
    # (vllm_ascend/releases; its heads may differ). None: it must not exist, or is not known.
    upstream_sha256: tuple[str, ...] = ()

    @property
    def package(self) -> str:
        """Name of the top-level package that is patched."""
        return self.target.partition(".")[0]


@dataclass(frozen=True, kw_only=True)
class Add(Patch):
    """A new attribute on a class or module of vLLM; ``replacement`` is its value."""


@dataclass(frozen=True, kw_only=True)
class AddField(Add):
    """A new field of a dataclass of vLLM that is sent between processes.

    Who encodes or decodes the class (msgspec) takes it for declared; a process without the patch
    passes over it. ``replacement`` is its default, which the class carries as an attribute: the
    constructor stays vLLM's own and does not take the field.
    """

    type: Any  # what msgspec decodes the value as


@dataclass(frozen=True, kw_only=True)
class Wrap(Patch):
    """A changed function; ``replacement`` is called in its place, with it as ``original``."""

    # "module:name" of others that hold the function by ``from ... import``; they are changed, too.
    aliases: tuple[str, ...] = ()

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of a function."""
        ours = self.replacement
        # Not a partial or a closure: a keyword's default adds no call to the original's.
        bound = FunctionType(
            ours.__code__, ours.__globals__, ours.__name__, ours.__defaults__, ours.__closure__
        )
        bound.__kwdefaults__ = {**(ours.__kwdefaults__ or {}), "original": original}
        bound.__name__ = getattr(original, "__name__", ours.__name__)
        return bound


@dataclass(frozen=True, kw_only=True)
class Rebind(Patch):
    """A class or function replaced at one name."""

    # "module:name" of others that hold the original and are known to work with it. Whoever else
    # holds it would be passed over unnoticed: refused.
    keepers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Override(Patch):
    """A method of vLLM's that a class of ours overrides: nothing is set, its source is checked.

    ``replacement`` is our method. It calls the original by ``super()``.
    """


def overrides(ours: type, target: str, feature: Mapping[str, Any]) -> tuple[Override, ...]:
    """Return an :class:`Override` per method of a class that is put over one of vLLM's.

    Args:
        ours: Its private attributes other than methods are its own affair.
        target: vLLM's class, ``"module:Class"``.
        feature: An entry of :mod:`vllm_ascend.patch.features`.
    """
    return tuple(
        Override(target=f"{target}.{name}", replacement=method, why=_why(method), **feature)
        for name, method in vars(ours).items()
        if inspect.isfunction(method)
    )


def _why(function: Callable[..., Any]) -> str:
    """Return the first paragraph of a function's docstring."""
    return " ".join((function.__doc__ or "").partition("\n\n")[0].split())


def changes(
    target: str, feature: Mapping[str, Any], **others: Any
) -> Callable[[Callable[..., Any]], Wrap]:
    """Make a function a :class:`Wrap`; its docstring's first paragraph is the patch's ``why``.

    Args:
        feature: An entry of :mod:`vllm_ascend.patch.features`.
        **others: Other fields.
    """

    def make(function: Callable[..., Any]) -> Wrap:
        fields = {"why": _why(function), **feature, **others}
        return Wrap(target=target, replacement=function, **fields)

    return make


def source_digest(function: Any) -> str:
    """Return the first 16 hex digits of the SHA-256 of a function's dedented source.

    Raises:
        OSError, TypeError: The source cannot be found (a builtin, or code without a file).
    """
    source = textwrap.dedent(inspect.getsource(plain_function(function)))
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def plain_function(attribute: Any) -> Any:
    """Return what a classmethod or staticmethod wraps, anything else as it is."""
    return getattr(attribute, "__func__", attribute)
