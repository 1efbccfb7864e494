# SPDX-License-Identifier: Apache-2.0
"""What one front end's choices came to: plain counters, which metrics and logs read."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

# Far more than come between two looks at them.
_MAX_OBSERVATIONS = 4096

REASONS = ("cache", "load", "client", "vllm")
"""Why a rank was chosen: it has more of the prompt than others; its load; the client named it; no
rank's cache is known, so vLLM chose."""


@dataclass
class RoutingStats:
    """Counters since the front end's start.

    Attributes:
        chosen: (rank, reason) -> requests.
        predicted_tokens: Rank -> hits that were expected when requests were sent.
        hit_tokens: Rank -> hits that these requests had.
        error_tokens: Rank -> by how much the two differed, request by request.
        predictions: (rank, ``exact`` or ``other``) -> requests whose hit is known.
        num_gaps: Rank -> times that messages of it were missing.
        seconds: How long choices took since they were last taken.
    """

    chosen: Counter[tuple[int, str]] = field(default_factory=Counter)
    predicted_tokens: Counter[int] = field(default_factory=Counter)
    hit_tokens: Counter[int] = field(default_factory=Counter)
    error_tokens: Counter[int] = field(default_factory=Counter)
    predictions: Counter[tuple[int, str]] = field(default_factory=Counter)
    num_gaps: Counter[int] = field(default_factory=Counter)
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_OBSERVATIONS))

    @property
    def num_exact(self) -> int:
        """Requests whose hit was the one expected."""
        return sum(n for (_, outcome), n in self.predictions.items() if outcome == "exact")

    def note_start(self, rank: int, predicted: int, hit: int) -> None:
        """Note the hit of a request that was sent with an expectation."""
        self.predictions[rank, "exact" if predicted == hit else "other"] += 1
        self.predicted_tokens[rank] += predicted
        self.hit_tokens[rank] += hit
        self.error_tokens[rank] += abs(predicted - hit)
