# SPDX-License-Identifier: Apache-2.0
"""A prompt as an index looks it up: its tokens, and what else its blocks are told apart by."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from typing import NamedTuple


class Image(NamedTuple):
    """One multimodal item of a prompt: vLLM's identifier and the tokens that stand for it."""

    identifier: str
    first_token: int
    num_tokens: int


class Content(NamedTuple):
    """What a unit is made of: everything before it, its tokens and its extra keys."""

    parent: Hashable
    tokens: bytes
    extra_keys: Hashable


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Return tokens in the form in which they are compared."""
    return array("I", token_ids).tobytes()


TOKEN_BYTES = array("I").itemsize


class Probe:
    """One prompt; nothing of it changes."""

    def __init__(
        self,
        token_ids: Sequence[int],
        lora_name: str | None,
        cache_salt: str | None,
        images: Sequence[Image],
    ) -> None:
        self.num_tokens = len(token_ids)
        self._tokens = pack_tokens(token_ids)
        self._lora_name = lora_name
        self._cache_salt = cache_salt
        self._images = images

    def content(self, parent: Hashable, start: int, end: int) -> Content:
        """Return the content of the unit of tokens ``[start, end)`` behind ``parent``."""
        tokens = self._tokens[start * TOKEN_BYTES : end * TOKEN_BYTES]
        return Content(parent, tokens, self._extra_keys(start, end))

    def _extra_keys(self, start: int, end: int) -> Hashable:
        """Return what vLLM adds to the hash of these tokens, in its order."""
        keys: list[Hashable] = [self._lora_name] if self._lora_name else []
        keys += [
            (image.identifier, image.first_token - start)
            for image in self._images
            if image.first_token < end and image.first_token + image.num_tokens > start
        ]
        if start == 0 and self._cache_salt:
            keys.append(self._cache_salt)
        return tuple(keys) or None
