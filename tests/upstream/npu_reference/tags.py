# SPDX-License-Identifier: Apache-2.0
"""Row tags: what every row of every KV page holds, as the operators wrote it.

A tag names the prefix of tokens that a row was computed from. Reference operators tell every row
that they write and read; a row read that holds anything but the reader's own prefix is an error, as
is a row written into a block that is not the writer's. Nothing is checked while there is no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

NULL_BLOCK = 0
# Tags that no prefix has.
UNWRITTEN, GARBAGE = 0, 1


class TagError(AssertionError):
    """An operator of the real worker read or wrote a row of the KV cache that it must not."""


class Prefixes:
    """Tags of all prefixes of a sequence of tokens; ``tags[n]`` names the first ``n``.

    Args:
        tags: Of prefixes that are known.
    """

    def __init__(self, tags: Sequence[int] = (hash("no token"),)) -> None:
        self.tags = list(tags)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        for token in tokens:
            self.tags.append(hash((self.tags[-1], token)))

    def cut(self, num_tokens: int) -> Prefixes:
        """Return the first ``num_tokens``; as many as are known if those are fewer."""
        return Prefixes(self.tags[: num_tokens + 1])


class Plane(NamedTuple):
    """The rows of one cache: what a layer of a group keeps.

    Attributes:
        layer: The layer's name.
        group: Its group.
        ratio: Tokens of a row.
        tags: ``[blocks, rows]``.
        region: Address of its first page; groups share regions.
        first_byte: Where its rows begin in a page.
        end_byte: Behind them.
        cache: The tensor itself.
    """

    layer: str
    group: int
    ratio: int
    tags: torch.Tensor
    region: int
    first_byte: int
    end_byte: int
    cache: torch.Tensor

    def first_token(self, request: Request) -> int:
        """Return from which token on a request's positions are counted here."""
        return request.first_state_token if self.layer.endswith(".state_cache") else 0

    def is_of(self, cache: torch.Tensor) -> bool:
        """Return whether a tensor is a view of the cache, with or without its dimension of 1."""
        return all(
            of(self.cache) == of(cache)
            for of in (torch.Tensor.data_ptr, lambda part: part.dtype, lambda part: part.stride(1))
        )


@dataclass
class Request:
    """A request in a call of the operators.

    Attributes:
        name: Its id.
        blocks: By group, the blocks that the scheduler gave it.
        prefixes: Tags of its tokens, this step's included.
        first_state_token: Where its rows of the state tables begin: the overlay's hold the last
            blocks only, and its compressors count positions from there.
    """

    name: str
    blocks: Sequence[Sequence[int]]
    prefixes: Prefixes
    first_state_token: int = 0


@dataclass
class Call:
    """What a layer's operators are called for.

    Attributes:
        requests: The requests in the rows of the block tables.
        tokens: For each token of the call, its request's place and its position.
        spans: For each request, the position of its first token and the one behind its last.
        layer: The layer's name, up to what its caches are called.
        lookahead: Tokens behind a row's own that it was computed from: 1 in the draft model.
        checks_reads: Whether what is read is checked, and not only what is written.
    """

    requests: Sequence[Request]
    tokens: Sequence[tuple[int, int]]
    spans: Sequence[tuple[int, int]]
    layer: str
    lookahead: int = 0
    checks_reads: bool = True


@dataclass
class Memory:
    """The tags of all caches of a worker.

    Attributes:
        planes: Of all layers.
        pages: Region -> the planes in it.
        call: What operators are called for.
        num_read: Rows that were read and checked.
    """

    planes: list[Plane] = field(default_factory=list)
    pages: dict[int, list[Plane]] = field(default_factory=dict)
    call: Call | None = None
    num_read: int = 0

    def add(self, layer: str, group: int, ratio: int, cache: torch.Tensor, start: int) -> None:
        """Begin a plane for a cache ``[blocks, rows, ...]``.

        Args:
            layer: The layer's name.
            group: Its group.
            ratio: Tokens of a row.
            cache: The tensor.
            start: The address of the layer's first page.
        """
        first = cache.data_ptr() - start
        tags = torch.full(cache.shape[:2], UNWRITTEN, dtype=torch.long)
        end = first + _bytes_in_a_page(cache)
        plane = Plane(layer, group, ratio, tags, start, first, end, cache)
        self.planes.append(plane)
        self.pages.setdefault(start, []).append(plane)

    def copy(self, pages: torch.Tensor, copies: Sequence[tuple[int, int]]) -> None:
        """Copy the tags of what lies in some pages: sources before destinations.

        Args:
            pages: ``[blocks, ...]``, whole pages or a part of each.
            copies: Blocks.
        """
        for plane in self.planes:
            first = pages.data_ptr() - plane.region
            is_in = first <= plane.first_byte and plane.end_byte <= first + _bytes_in_a_page(pages)
            if not is_in or first < 0:
                continue
            sources = plane.tags[[source for source, _ in copies]].clone()
            plane.tags[[destination for _, destination in copies]] = sources

    def wrote(
        self, cache: torch.Tensor, blocks: torch.Tensor, rows: torch.Tensor, sources: torch.Tensor
    ) -> None:
        """Tag rows that were written. See :func:`wrote`."""
        plane, call = self._plane_of(cache)
        owned: list[set[int]] = [set(request.blocks[plane.group]) for request in call.requests]
        closing = [
            (index, position)
            for index, position in call.tokens
            if (position + 1) % plane.ratio == 0
        ]
        tags = []
        for block, row, source in zip(
            blocks.tolist(), rows.tolist(), sources.tolist(), strict=True
        ):
            if source >= len(closing) or block == NULL_BLOCK:
                tags.append(GARBAGE)
                if source >= len(closing):
                    self._refuse_foreign(plane, owned, block, row)
                continue
            index, position = closing[source]
            request = call.requests[index]
            if block not in owned[index]:
                raise self._error("wrote into a foreign block", plane, request, block, row)
            tags.append(request.prefixes.tags[position + 1 + call.lookahead])
        self._overwrite(cache, plane, blocks)
        plane.tags[blocks, rows] = torch.tensor(tags, dtype=torch.long)

    def read(
        self,
        cache: torch.Tensor,
        blocks: torch.Tensor,
        rows: torch.Tensor,
        index: int,
        positions: torch.Tensor,
    ) -> None:
        """Check rows that were read. See :func:`read`."""
        plane, call = self._plane_of(cache)
        request = call.requests[index]
        if not call.checks_reads:
            return
        positions = positions + plane.first_token(request)
        known = torch.tensor(request.prefixes.tags, dtype=torch.long)
        expected = known[positions + 1 + call.lookahead]
        found = plane.tags[blocks, rows]
        differs = found != expected
        if call.lookahead:
            # Drafts of a request's first step reach behind the blocks that it was given: they are
            # written into the null block and read from there, and are bad drafts.
            given = len(request.blocks[plane.group]) * plane.tags.shape[1]
            differs &= (blocks != NULL_BLOCK) | (positions < given)
        wrong = differs.nonzero().flatten()
        if len(wrong):
            at = int(wrong[0])
            what = {UNWRITTEN: "nothing", GARBAGE: "what nobody may read"}.get(
                int(found[at]), "another prefix"
            )
            problem = f"read {what} for position {int(positions[at])}"
            raise self._error(problem, plane, request, int(blocks[at]), int(rows[at]))
        self.num_read += len(found)

    def computes(self, cache: torch.Tensor, index: int, first: int, end: int) -> None:
        """Check where an operator takes a request's tokens to be. See :func:`computes`."""
        plane, call = self._plane_of(cache)
        before = plane.first_token(call.requests[index])
        first, end = first + before, end + before
        if call.checks_reads and (first, end) != call.spans[index]:
            start, stop = call.spans[index]
            raise TagError(
                f"request {call.requests[index].name}: positions [{first}, {end}) instead of "
                f"[{start}, {stop}) [{plane.layer}, group {plane.group}]"
            )

    def _overwrite(self, cache: torch.Tensor, plane: Plane, blocks: torch.Tensor) -> None:
        """Forget what other caches had in the pages: they lie in the same bytes."""
        for other in self.pages[plane.region]:
            apart = other.end_byte <= plane.first_byte or plane.end_byte <= other.first_byte
            if other is not plane and not apart:
                other.tags[blocks] = UNWRITTEN

    def _refuse_foreign(self, plane: Plane, owned: list[set[int]], block: int, row: int) -> None:
        """Rows of no token may be overwritten only where a request of the call will write."""
        if block != NULL_BLOCK and not any(block in blocks for blocks in owned):
            raise TagError(
                f"a row of no token was written into a foreign block [{plane.layer}, group "
                f"{plane.group}, block {block}, row {row}]"
            )

    def _plane_of(self, cache: torch.Tensor) -> tuple[Plane, Call]:
        """Return the plane of a cache in the layer that is being computed."""
        if self.call is None:
            raise TagError("a KV cache was used outside any step")
        planes = [plane for plane in self.planes if plane.layer.startswith(self.call.layer)]
        # Groups share memory: two caches of a layer may be equal but for the object.
        same = [plane for plane in planes if plane.cache is cache]
        found = same or [plane for plane in planes if plane.is_of(cache)]
        if len(found) != 1:
            raise TagError(f"{self.call.layer}: {len(found)} of its caches are what was used")
        return found[0], self.call

    def _error(
        self, problem: str, plane: Plane, request: Request, block: int, row: int
    ) -> TagError:
        return TagError(
            f"request {request.name}: {problem} "
            f"[{plane.layer}, group {plane.group}, block {block}, row {row}]"
        )


def _bytes_in_a_page(cache: torch.Tensor) -> int:
    """Return the bytes that one block of a tensor ``[blocks, rows, ...]`` reaches over."""
    return cache.shape[1] * cache.stride(1) * cache.element_size()


# Where a process checks: one memory, or none.
_memories: list[Memory] = []


def begin(memory: Memory | None) -> None:
    """Check from now on, with this memory; None: check no longer."""
    _memories[:] = [memory] if memory else []


def current() -> Memory | None:
    """Return the memory that is checked with, if there is one."""
    return _memories[0] if _memories else None


def wrote(
    cache: torch.Tensor, blocks: torch.Tensor, rows: torch.Tensor, sources: torch.Tensor
) -> None:
    """Say that rows were written.

    Args:
        cache: Which cache.
        blocks: ``[num_rows]``.
        rows: ``[num_rows]``, in their blocks.
        sources: ``[num_rows]``: of the rows of the call, counted over its requests, which one.

    Raises:
        TagError: A block is not the writer's.
    """
    for memory in _memories:
        memory.wrote(cache, blocks, rows, sources)


def read(
    cache: torch.Tensor,
    blocks: torch.Tensor,
    rows: torch.Tensor,
    index: int,
    positions: torch.Tensor,
) -> None:
    """Say that rows were read.

    Args:
        cache: Which cache.
        blocks: ``[num_rows]``.
        rows: ``[num_rows]``, in their blocks.
        index: Which request of the call.
        positions: ``[num_rows]``: the last token that each row was computed from.

    Raises:
        TagError: A row holds something else.
    """
    for memory in _memories:
        memory.read(cache, blocks, rows, index, positions)


def computes(cache: torch.Tensor, index: int, first: int, end: int) -> None:
    """Say where an operator takes a request's tokens to be: at positions ``[first, end)``.

    Args:
        cache: Which cache it uses.
        index: Which request of the call.
        first: The position of its first token.
        end: Behind its last one.

    Raises:
        TagError: They are elsewhere.
    """
    for memory in _memories:
        memory.computes(cache, index, first, end)
