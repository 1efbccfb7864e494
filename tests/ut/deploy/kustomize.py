# SPDX-License-Identifier: Apache-2.0
"""A renderer for what ``deploy/`` uses of Kustomize, for machines without its binary.

Resources, components, config map generators, JSON patches, name suffixes, images, and references to
config maps. Whatever else a kustomization asks for is an error. ``test_rendering.py`` compares it
with ``kubectl kustomize`` object by object, where that is installed.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

KNOWN_FIELDS = {
    "apiVersion",
    "kind",
    "resources",
    "components",
    "configMapGenerator",
    "patches",
    "nameSuffix",
    "images",
    "configurations",
}
# Kinds that Kustomize knows to name config maps; custom ones need `configurations`.
REFERRING_KINDS = {"Deployment"}


@dataclass
class Item:
    """One object on its way through nested kustomizations.

    Attributes:
        body: The object itself; ``metadata.name`` has the suffixes of the layers passed.
        origin: The name that others refer to it by.
        hashed: Whether a hash of the content ends the final name.
    """

    body: dict[str, Any]
    origin: str
    hashed: bool = False


@dataclass
class Rendering:
    """The objects of a kustomization, and the kinds whose references it resolves."""

    items: list[Item] = field(default_factory=list)
    referring: set[str] = field(default_factory=lambda: set(REFERRING_KINDS))


def render(folder: Path) -> list[dict[str, Any]]:
    """Return the objects that ``kubectl kustomize FOLDER`` prints, in no particular order.

    Raises:
        NotImplementedError: A kustomization uses a feature that is not covered here.
    """
    rendering = _accumulate(folder, Rendering())
    names = {}
    for item in rendering.items:
        if item.hashed:
            names[item.origin] = f"{item.body['metadata']['name']}-{content_hash(item.body)}"
            item.body["metadata"]["name"] = names[item.origin]
    for item in rendering.items:
        if item.body["kind"] in rendering.referring:
            for reference in _config_map_references(item.body):
                reference["name"] = names.get(reference["name"], reference["name"])
    return [item.body for item in rendering.items]


def _accumulate(folder: Path, below: Rendering) -> Rendering:
    spec = yaml.safe_load((folder / "kustomization.yaml").read_text())
    unknown = spec.keys() - KNOWN_FIELDS
    if unknown:
        raise NotImplementedError(f"{folder}: {sorted(unknown)}")
    for name in spec.get("resources", []):
        _add_resource(folder / name, below)
    for name in spec.get("components", []):
        _accumulate(folder / name, below)
    for generator in spec.get("configMapGenerator", []):
        _generate(folder, generator, below.items)
    for patch in spec.get("patches", []):
        _patch(folder, patch, below.items)
    for item in below.items:
        item.body["metadata"]["name"] += spec.get("nameSuffix", "")
    for image in spec.get("images", []):
        for container in (c for item in below.items for c in containers(item.body)):
            if container["image"] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"
    for name in spec.get("configurations", []):
        for rule in yaml.safe_load((folder / name).read_text())["nameReference"]:
            below.referring |= {target["kind"] for target in rule["fieldSpecs"]}
    return below


def _add_resource(path: Path, below: Rendering) -> None:
    if path.is_dir():
        inner = _accumulate(path, Rendering())
        below.items += inner.items
        below.referring |= inner.referring
    else:
        bodies = [body for body in yaml.safe_load_all(path.read_text()) if body]
        below.items += [Item(body, body["metadata"]["name"]) for body in bodies]


def _generate(folder: Path, generator: dict[str, Any], items: list[Item]) -> None:
    data: dict[str, str] = {}
    for name in generator.get("files", []):
        data[name] = (folder / name).read_text()
    pairs = list(generator.get("literals", []))
    for name in generator.get("envs", []):
        lines = (line.strip() for line in (folder / name).read_text().splitlines())
        pairs += [line for line in lines if line and not line.startswith("#")]
    data |= dict(pair.split("=", 1) for pair in pairs)
    options = generator.get("options", {})
    match generator.get("behavior", "create"):
        case "create":
            metadata: dict[str, Any] = {"name": generator["name"]}
            if "labels" in options:
                metadata["labels"] = options["labels"]
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            hashed = not options.get("disableNameSuffixHash", False)
            items.append(Item(body, generator["name"], hashed))
        case "replace":
            (old,) = (item for item in items if item.hashed and item.origin == generator["name"])
            old.body["data"] = data
        case "merge":
            (old,) = (item for item in items if item.hashed and item.origin == generator["name"])
            old.body["data"] |= data
        case other:
            raise NotImplementedError(f"{folder}: configMapGenerator behavior {other}")


def _patch(folder: Path, patch: dict[str, Any], items: list[Item]) -> None:
    text = patch["patch"] if "patch" in patch else (folder / patch["path"]).read_text()
    target = patch["target"]
    if target.keys() - {"kind", "name"}:
        raise NotImplementedError(f"{folder}: patch target {target}")
    for item in items:
        same_name = re.fullmatch(target.get("name", ".*"), item.body["metadata"]["name"])
        if item.body["kind"] == target["kind"] and same_name:
            for operation in yaml.safe_load(text):
                apply_operation(item.body, copy.deepcopy(operation))


def apply_operation(body: dict[str, Any], operation: dict[str, Any]) -> None:
    """Apply one JSON patch operation (RFC 6902), ``add`` or ``replace``, to ``body`` in place.

    Raises:
        KeyError: The parent of the path, or for ``replace`` the place itself, does not exist.
        IndexError: The same of a place in a list.
    """
    *parents, last = [part.replace("~1", "/") for part in operation["path"].split("/")[1:]]
    place: Any = body
    for part in parents:
        place = place[int(part)] if isinstance(place, list) else place[part]
    match operation["op"], place:
        case "replace", list():
            place[int(last)] = operation["value"]
        case "replace", _ if last not in place:
            raise KeyError(operation["path"])
        case "add", list() if last == "-":
            place.append(operation["value"])
        case "add" | "replace", dict():
            place[last] = operation["value"]
        case _:
            raise NotImplementedError(operation)


def walk(node: Any, visit: Callable[[str, Any], None]) -> None:
    """Call ``visit(key, value)`` for every entry of every mapping under ``node``."""
    if isinstance(node, dict):
        for key, value in node.items():
            visit(key, value)
            walk(value, visit)
    elif isinstance(node, list):
        for value in node:
            walk(value, visit)


def containers(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every container of an object, wherever its pod template is."""
    found: list[dict[str, Any]] = []
    walk(body, lambda key, value: found.extend(value) if key == "containers" else None)
    yield from found


def _config_map_references(body: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def visit(key: str, value: Any) -> None:
        if key in ("configMapRef", "configMap") and isinstance(value, dict):
            found.append(value)

    walk(body.get("spec"), visit)
    return found


def content_hash(config_map: dict[str, Any]) -> str:
    """Return the hash that Kustomize appends to a generated config map's name."""
    # Kustomize hashes before it knows the final name, hence the empty one.
    facts = {"data": config_map["data"], "kind": "ConfigMap", "name": ""}
    text = json.dumps(facts, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    for character in "<>&":  # as Go writes JSON
        text = text.replace(character, f"\\u{ord(character):04x}")
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return digest.translate(str.maketrans("013ae", "ghkmt"))
