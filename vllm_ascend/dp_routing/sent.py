# SPDX-License-Identifier: Apache-2.0
"""What was sent to ranks and is not computed yet: it counts as if it were there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class _Prompt:
    """A request until its first token.

    Attributes:
        left_tokens: What its rank has yet to compute of it.
        names: Of the granules that nobody else was sent with before.
    """

    rank: int
    left_tokens: int
    names: list[int] = field(default_factory=list)


class SentPrompts:
    """The requests of one front end that have not got their first token yet.

    Attributes:
        left_tokens: By rank, what is left to compute of them, in tokens.
        num_waiting: By rank, how many there are.
    """

    def __init__(self, num_ranks: int) -> None:
        self.left_tokens = [0] * num_ranks
        self.num_waiting = [0] * num_ranks
        self._prompts: dict[str, _Prompt] = {}
        # By rank: name of a granule on its way -> whose it is
        self._owners: list[dict[int, _Prompt]] = [{} for _ in range(num_ranks)]

    def add(
        self, request_id: str, rank: int, names: Sequence[int], start: int, left_tokens: int
    ) -> None:
        """Note a request that is sent.

        Args:
            request_id: Its id, which no request on its way has.
            rank: Where it goes.
            names: Of its whole granules.
            start: The first granule that the rank does not hold.
            left_tokens: What the rank has to compute of it.
        """
        prompt, owners = _Prompt(rank, left_tokens), self._owners[rank]
        for name in names[start:]:
            if name not in owners:
                owners[name] = prompt
                prompt.names.append(name)
        self._prompts[request_id] = prompt
        self.left_tokens[rank] += left_tokens
        self.num_waiting[rank] += 1

    def add_more(self, request_id: str, rank: int, num_tokens: int) -> None:
        """Note a further chunk of a session. Its rows follow what only its rank knows: no names.

        Args:
            request_id: The session's id. It waits once, however many chunks wait.
            rank: The session's.
            num_tokens: The chunk's, all of which are to be computed.
        """
        if request_id not in self._prompts:
            self.add(request_id, rank, (), 0, num_tokens)
            return
        self._prompts[request_id].left_tokens += num_tokens
        self.left_tokens[rank] += num_tokens

    def reach(self, rank: int, names: Sequence[int], start: int, end: int) -> int:
        """Return how far the granules ``[start, end)`` are on their way to a rank, from the first.

        Returns:
            The ordinal behind the last of them; ``start`` if the first is not.
        """
        owners = self._owners[rank]
        while start < end and names[start] in owners:
            start += 1
        return start

    def computed(self, rank: int, names: Sequence[int], hash_tokens: int) -> None:
        """Note granules that a rank holds now."""
        owners = self._owners[rank]
        if not owners:
            return
        for name in names:
            prompt = owners.pop(name, None)
            if prompt is not None:
                done = min(hash_tokens, prompt.left_tokens)
                prompt.left_tokens -= done
                self.left_tokens[rank] -= done

    def finish(self, request_id: str) -> None:
        """Note that a request has got its first token, or never will; any other is ignored."""
        prompt = self._prompts.pop(request_id, None)
        if prompt is None:
            return
        owners = self._owners[prompt.rank]
        for name in prompt.names:
            if owners.get(name) is prompt:
                del owners[name]
        self.left_tokens[prompt.rank] -= prompt.left_tokens
        self.num_waiting[prompt.rank] -= 1

    def __contains__(self, request_id: str) -> bool:
        """Whether a request waits for its first token."""
        return request_id in self._prompts
