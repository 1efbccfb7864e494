# SPDX-License-Identifier: Apache-2.0
"""The ceiling: what a cache would hit that never forgets anything.

The hit of a prompt is its longest common prefix with any prompt before it, at most all but its last
token, cut to the granule. Prompts live in a radix tree whose edges are compared as arrays, so the
cost of a prompt is one comparison of its tokens, and memory holds every distinct token run once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from vllm_ascend_evaluation.replay.results import Bounds
from vllm_ascend_evaluation.replay.trace import Workload


@dataclass(frozen=True)
class Survey:
    """What can be said of a workload without running it.

    Attributes:
        bounds: Hit rates of an unlimited cache.
        digest: SHA-256 prefix over all prompts and output lengths.
    """

    bounds: Bounds
    digest: str


class SeenPrompts:
    """Every prompt seen so far."""

    def __init__(self) -> None:
        # First token of an edge -> the edge; at most one can go on with a given token.
        self._roots: dict[int, _Edge] = {}

    def common_prefix(self, prompt: np.ndarray) -> int:
        """Return the longest common prefix with any earlier prompt in tokens, and remember this.

        Args:
            prompt: Token ids.
        """
        edges = self._roots
        common = 0
        while common < len(prompt):
            edge = edges.get(int(prompt[common]))
            if edge is None:
                edges[int(prompt[common])] = _Edge(_compact(prompt[common:]), {})
                break
            shared = _num_common(edge.tokens, prompt[common:])
            common += shared
            if shared < len(edge.tokens):
                edge.split(shared)
            edges = edge.behind
        return common


@dataclass
class _Edge:
    """A run of tokens that all prompts through it share, and the edges that go on behind it."""

    tokens: np.ndarray
    behind: dict[int, _Edge]

    def split(self, position: int) -> None:
        """Let other prompts leave behind the first ``position`` tokens."""
        rest = _Edge(self.tokens[position:], self.behind)
        self.tokens, self.behind = self.tokens[:position], {int(rest.tokens[0]): rest}


def _compact(tokens: np.ndarray) -> np.ndarray:
    """Return a copy, so that the prompt itself can go, at half the size if the ids allow it."""
    is_small = tokens.max() <= np.iinfo(np.int32).max
    return tokens.astype(np.int32 if is_small else np.int64)


def _num_common(one: np.ndarray, other: np.ndarray) -> int:
    """Return how many tokens two runs share at their start."""
    length = min(len(one), len(other))
    different = one[:length] != other[:length]
    return int(different.argmax()) if different.any() else length


def survey(workload: Workload, alignments: Collection[int]) -> Survey:
    """Compute the bounds of a workload for granules 1 and 128 and some alignments, in tokens."""
    index = SeenPrompts()
    digest = hashlib.sha256()
    granules = {1, 128, *alignments}
    hits = dict.fromkeys(granules, 0)
    prompt_tokens = 0
    for request in workload.requests():
        prompt = np.asarray(request.prompt_token_ids, dtype=np.int64)
        digest.update(prompt.tobytes())
        digest.update(f";{request.output_tokens};".encode())
        common = min(index.common_prefix(prompt), len(prompt) - 1)
        prompt_tokens += len(prompt)
        for granule in granules:
            hits[granule] += common // granule * granule
    rates = {granule: 100.0 * hit / prompt_tokens for granule, hit in hits.items()}
    return Survey(
        bounds=Bounds(
            granule_1=rates[1],
            granule_128=rates[128],
            aligned={alignment: rates[alignment] for alignment in sorted(alignments)},
        ),
        digest=digest.hexdigest()[:16],
    )
