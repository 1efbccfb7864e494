# SPDX-License-Identifier: Apache-2.0
"""Containers of Kubernetes manifests: what they run, and in what environment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.doctor.serving_command import SERVE, Container

# Linux gives a process no longer variable or argument.
_MAX_TEXT = 1 << 17
_REFERENCE = re.compile(r"\$\((\w+)\)")


def containers(documents: Iterable[Any]) -> Iterator[Container]:
    """Yield the containers of all workloads, of whatever kind; those that run before them not.

    Raises:
        BadInputError: A container's environment comes from a ConfigMap that is not among these.
    """
    items = list(_items(documents))
    maps = _ConfigMaps(items)
    for item in items:
        workload = str((item.get("metadata") or {}).get("name", "?"))
        for container in _containers_below(item):
            yield _container(container, workload, maps)


def _items(documents: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield the objects of all documents; a List is what it holds."""
    for document in documents:
        if isinstance(document, dict):
            if document.get("kind") == "List":
                yield from _items(document.get("items") or ())
            elif "kind" in document:
                yield document


def _containers_below(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from value if key == "containers" else _containers_below(value)
    elif isinstance(node, list):
        for entry in node:
            yield from _containers_below(entry)


class _ConfigMaps:
    """The ConfigMaps of a file, by their names."""

    def __init__(self, items: Iterable[dict[str, Any]]) -> None:
        self._maps: dict[str, Mapping[str, Any]] = {
            item["metadata"]["name"]: item.get("data") or {}
            for item in items
            if item["kind"] == "ConfigMap"
        }

    def values(self, reference: Mapping[str, Any], container: str) -> Mapping[str, Any]:
        """Return what the map has that a container refers to.

        Raises:
            BadInputError: It is not there, and is not optional.
        """
        name = reference.get("name")
        if name in self._maps:
            return self._maps[name]
        if reference.get("optional"):
            return {}
        raise BadInputError(
            f"{container} takes its environment from the ConfigMap {name}, which is not in the "
            "file: put both into one, as `kubectl kustomize` does"
        )


def _container(container: dict[str, Any], workload: str, maps: _ConfigMaps) -> Container:
    name = f"{workload}/{container.get('name', '?')}"
    environ: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        if "configMapRef" in source:  # the others are secrets, and no switch is one
            prefix = source.get("prefix") or ""
            values = maps.values(source["configMapRef"], name)
            environ.update({f"{prefix}{key}": str(value) for key, value in values.items()})
    for entry in container.get("env") or ():
        value = _value(entry, name, maps)
        if value is not None:
            environ[entry["name"]] = _referenced(value, environ)
    words = [str(word) for key in ("command", "args") for word in container.get(key) or ()]
    if words and words[0].startswith("-"):
        words = [*SERVE, *words]  # the entry point of vLLM's image
    return Container(name, [_referenced(word, environ) for word in words], environ)


def _value(entry: Mapping[str, Any], container: str, maps: _ConfigMaps) -> str | None:
    """Return the value of a variable; ``None`` if the cluster alone knows it."""
    if "valueFrom" not in entry:
        return str(entry.get("value", ""))
    reference = entry["valueFrom"].get("configMapKeyRef")
    if reference is None:
        return None
    value = maps.values(reference, container).get(reference.get("key"))
    return None if value is None else str(value)


def _referenced(text: str, environ: Mapping[str, str]) -> str:
    """Put values in the places of ``$(NAME)``; one that is not known stays as it is.

    Raises:
        BadInputError: Values of values of values are longer than a process can be given.
    """
    length = len(text) + sum(len(environ.get(name, "")) for name in _REFERENCE.findall(text))
    if length > _MAX_TEXT:
        raise BadInputError(f"a value is longer than {_MAX_TEXT:,} characters with what it names")
    return _REFERENCE.sub(lambda match: environ.get(match[1], match[0]), text)
