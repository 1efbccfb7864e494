# SPDX-License-Identifier: Apache-2.0
"""A short name of a model's files, so that other weights under the same path have another one.

It takes the configuration and the code beside the weights whole, and of every file with weights
its size, its header and samples of its bytes. A few thousand small reads name a model of hundreds
of GB, in seconds; no file with weights is read whole.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf", ".tensors"})
# Beside the weights, and of no effect on what token ids are computed to.
_NOT_COMPUTED_WITH = frozenset(
    {
        "added_tokens.json",
        "chat_template.json",
        "generation_config.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
    }
)
_SAMPLE_BYTES = 256
# Of tensors that differ only in the numbers in their names, as the experts of all layers in a file.
_SAMPLES_PER_CLASS = 64
# Of files whose tensors are not known.
_SAMPLES_PER_FILE = 256
_READERS = 8
# Of a safetensors file; vLLM's loader knows the same bound.
_MOST_HEADER_BYTES = 100_000_000


class NoWeightsError(Exception):
    """A folder has no files with weights; the message says which folder."""


def fingerprint(model: Path) -> str:
    """Return the name of a model's configuration and weights, in 32 hexadecimal digits.

    Args:
        model: A folder, or a single file with weights.

    Raises:
        NoWeightsError: There are no weights.
        OSError: A file cannot be read.
    """
    parts = f"{weights_digest(model)} {configuration_digest(model)}"
    return blake2b(parts.encode(), digest_size=16).hexdigest()


def configuration_digest(model: Path) -> str:
    """Return a digest of what a folder says of its model: JSON files and code. Empty for no folder.

    Args:
        model: A folder, or a single file with weights.
    """
    if not model.is_dir():
        return ""
    digest = blake2b(digest_size=16)
    for file in _files(model):
        if file.suffix in {".json", ".py"} and file.name not in _NOT_COMPUTED_WITH:
            digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def weights_digest(model: Path) -> str:
    """Return a digest of the files with weights, without a whole read of any.

    Args:
        model: A folder, or a single file with weights.

    Raises:
        NoWeightsError: There are none.
        OSError: One cannot be read.
    """
    files = [file for file in _files(model) if file.suffix in WEIGHT_SUFFIXES]
    if not files:
        raise NoWeightsError(f"{model} has no files with weights")
    digest = blake2b(digest_size=16)
    with ThreadPoolExecutor(_READERS) as readers:
        for file, part in zip(files, readers.map(_file_digest, files), strict=True):
            digest.update(file.name.encode() + b"\0" + part)
    return digest.hexdigest()


def _files(model: Path) -> list[Path]:
    """Return the files of a folder by name, or the one file."""
    return sorted(file for file in model.iterdir() if file.is_file()) if model.is_dir() else [model]


def _file_digest(file: Path) -> bytes:
    """Return the digest of a file's size, header and samples."""
    digest = blake2b(digest_size=16)
    with file.open("rb", buffering=0) as opened:
        descriptor, size = opened.fileno(), os.fstat(opened.fileno()).st_size
        digest.update(size.to_bytes(8, "little"))
        header = _safetensors_header(descriptor, size) if file.suffix == ".safetensors" else None
        digest.update(header or b"")
        places = _evenly(0, size) if header is None else _of_tensors(header)
        for place in places:
            digest.update(os.pread(descriptor, _SAMPLE_BYTES, place))
    return digest.digest()


def _safetensors_header(descriptor: int, size: int) -> bytes | None:
    """Return a file's JSON header; ``None``: it has none, whatever its name says."""
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    if not 2 <= length <= min(size - 8, _MOST_HEADER_BYTES):
        return None
    header = os.pread(descriptor, length, 8)
    try:
        return header if isinstance(json.loads(header), dict) else None
    except ValueError:
        return None


def _of_tensors(header: bytes) -> Iterator[int]:
    """Yield where tensors are sampled, in their middle; all but very many of one kind are.

    A tuned model may differ from another one in its smallest tensors alone.
    """
    classes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for name, tensor in json.loads(header).items():
        if name != "__metadata__":
            start, end = tensor["data_offsets"]
            classes[re.sub(r"\d+", "#", name)].append((start, end))
    first_byte = 8 + len(header)
    for _, tensors in sorted(classes.items()):
        tensors.sort()
        step = max(len(tensors) / _SAMPLES_PER_CLASS, 1)
        for i in range(min(len(tensors), _SAMPLES_PER_CLASS)):
            start, end = tensors[int(i * step)]
            yield first_byte + start + max(end - start - _SAMPLE_BYTES, 0) // 2


def _evenly(start: int, end: int) -> Iterator[int]:
    """Yield places from the first byte to the last sample."""
    last = max(end - start - _SAMPLE_BYTES, 0)
    for i in range(_SAMPLES_PER_FILE):
        yield start + last * i // (_SAMPLES_PER_FILE - 1)
