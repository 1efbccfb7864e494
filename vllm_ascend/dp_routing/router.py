# SPDX-License-Identifier: Apache-2.0
"""The front end's choice between data-parallel ranks: index, what was sent, and loads together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from vllm.v1.engine import EngineCoreRequest

from vllm_ascend.dp_routing.choice import RankLoad, choose_rank
from vllm_ascend.dp_routing.index import CacheIndex
from vllm_ascend.dp_routing.names import prompt_names
from vllm_ascend.dp_routing.news import CacheNews
from vllm_ascend.dp_routing.sent import SentPrompts
from vllm_ascend.dp_routing.stats import RoutingStats

_RECENT_REQUESTS = 64
"""Of how many requests per rank recent work tells."""


@dataclass(frozen=True)
class Prompt:
    """What a choice needs to know of a request.

    Attributes:
        names: Of its whole granules.
        num_tokens: All of its prompt's.
        is_pulled: Another engine has computed it: a rank computes nothing, and pulls the rows that
            it lacks.
    """

    names: Sequence[int]
    num_tokens: int
    is_pulled: bool = False


@dataclass(frozen=True)
class _Expected:
    """What is expected of a prompt on one rank.

    Attributes:
        hit_tokens: The hit, if all that is on its way has been computed.
        granules: What is there or on its way, in granules.
        with_tier: The hit, with what the rank loads, from a tier or from the engine that has
            computed the prompt; in tokens.
        from_disk: What of it other ranks have on a disk, in tokens.
    """

    hit_tokens: int
    granules: int
    with_tier: int
    from_disk: int = 0


def _is_pulled(request: EngineCoreRequest) -> bool:
    parameters = request.sampling_params
    told = (parameters.extra_args if parameters is not None else None) or {}
    return bool((told.get("kv_transfer_params") or {}).get("do_remote_prefill"))


class Router:
    """Chooses ranks for the requests of one front end.

    Attributes:
        index: What the ranks have cached.
        sent: What was sent to them and has not got its first token.
        stats: What was chosen, and how right it was.
    """

    def __init__(self, num_ranks: int, *, client_index: int = 0, client_count: int = 1) -> None:
        """Know nothing yet.

        Args:
            num_ranks: Ranks to choose between.
            client_index: Which front end of the deployment this is.
            client_count: How many there are.
        """
        self.num_ranks = num_ranks
        self.index = CacheIndex(num_ranks)
        self.sent = SentPrompts(num_ranks)
        self.stats = RoutingStats()
        self._client_count = client_count
        self._tie = num_ranks * client_index // client_count
        self._recent = [0.0] * num_ranks
        # Requests sent with an expectation of their hit: rank and tokens
        self._predicted: dict[str, tuple[int, int]] = {}
        # Live requests: the name of the prefix that they were expected to hit, and how many have it
        self._live: dict[str, int | None] = {}
        self._sharers: Counter[int | None] = Counter()

    @property
    def knows_any(self) -> bool:
        """Whether any rank's cache is known; without that there is nothing to choose by."""
        return any(map(self.index.is_known, range(self.num_ranks)))

    def prompt_of(self, request: EngineCoreRequest) -> Prompt:
        """Hash a request's prompt, once for all ranks. It changes nothing here.

        Who wants log probabilities of a prompt hits nothing: it is taken for one without a name.
        """
        num_tokens = len(request.prompt_token_ids or ())
        parameters, hash_tokens = request.sampling_params, self.index.hash_tokens
        hits = not (parameters is not None and parameters.skip_reading_prefix_cache)
        names = prompt_names(request, hash_tokens) if hash_tokens and hits else ()
        return Prompt(names, num_tokens, is_pulled=_is_pulled(request))

    def choose(self, request_id: str, prompt: Prompt, counts: Sequence[Sequence[float]]) -> int:
        """Choose the rank for a request, and count it as sent there.

        Args:
            request_id: Its id.
            prompt: See :meth:`prompt_of`.
            counts: By rank, the requests that wait and run there as vLLM's balancer knows them:
                of all front ends, and up to 100 ms old.
        """
        start = perf_counter()
        expected = self._expected(prompt)
        best = max(there.with_tier for there in expected)
        loads = [
            RankLoad(
                best - there.with_tier,
                *self._load(rank, counts[rank]),
                self._recent[rank],
                there.with_tier - there.hit_tokens - there.from_disk,
                there.from_disk,
            )
            for rank, there in enumerate(expected)
        ]
        rank = choose_rank(loads, self._sharers[self._shared_name(prompt, best)], self._tie)
        self._tie += 1
        self._send(request_id, prompt, rank, expected, self._reason(rank, expected))
        self.stats.seconds.append(perf_counter() - start)
        return rank

    def send(self, request_id: str, prompt: Prompt, rank: int) -> None:
        """Count a request as sent to the rank that its client named."""
        self._send(request_id, prompt, rank, self._expected(prompt), "client")

    def send_more(self, request_id: str, num_tokens: int, rank: int) -> None:
        """Count a further chunk of a live session as sent to its rank.

        Args:
            request_id: The session's id.
            num_tokens: The chunk's.
            rank: Where the session lives.
        """
        self.sent.add_more(request_id, rank, num_tokens)
        self._note_recent(rank, num_tokens)

    def _note_recent(self, rank: int, num_tokens: int) -> None:
        """Note tokens that a rank was given to compute; those of before count a little less."""
        fading = 1 - 1 / (_RECENT_REQUESTS * self.num_ranks)
        self._recent = [given * fading for given in self._recent]
        self._recent[rank] += num_tokens

    def _send(
        self,
        request_id: str,
        prompt: Prompt,
        rank: int,
        expected: Sequence[_Expected],
        reason: str,
    ) -> None:
        self.finished(request_id)  # an id that comes anew: nothing of before is left booked
        there = expected[rank]
        left, start = prompt.num_tokens - there.with_tier, there.granules
        if not prompt.is_pulled:  # its rows are on their way, those of a tier are there
            start = max(start, there.with_tier // max(self.index.hash_tokens, 1))
        self.sent.add(request_id, rank, prompt.names, start, left)
        self._note_recent(rank, left)
        if there.with_tier == there.hit_tokens:  # a load may replace the end of the rank's own hit
            self._predicted[request_id] = rank, there.hit_tokens
        shared_name = self._shared_name(prompt, max(there.with_tier for there in expected))
        self._live[request_id] = shared_name
        if shared_name is not None:
            self._sharers[shared_name] += 1
        self.stats.chosen[rank, reason] += 1

    def _shared_name(self, prompt: Prompt, best_hit: int) -> int | None:
        """Return what the prefix is called that a prompt shares with others; ``None``: nothing."""
        if not (best_hit and prompt.names):
            return None
        return prompt.names[best_hit // self.index.hash_tokens - 1]

    def _expected(self, prompt: Prompt) -> list[_Expected]:
        """Return what is expected of a prompt on every rank."""
        cached, size = self.index.look_up(prompt.names, prompt.num_tokens), self.index.hash_tokens
        if not size:
            pulled = prompt.num_tokens if prompt.is_pulled else 0
            return [_Expected(0, 0, pulled)] * self.num_ranks
        end, alignment = (prompt.num_tokens - 1) // size, self.index.alignment
        hits, reaches = [], []
        for rank, (hit, matched) in enumerate(cached):
            start = matched // size
            reach = self.sent.reach(rank, prompt.names, start, end)
            if reach > start:  # when the others have been computed, this one hits what they left
                hit = max(hit, reach * size // alignment * alignment)
            hits.append(hit)
            reaches.append(reach)
        if prompt.is_pulled:  # rows count without a tail, and the others are loaded
            return [_Expected(reach * size, reach, prompt.num_tokens) for reach in reaches]
        own = self.index.with_tier(prompt.names, prompt.num_tokens, hits)
        all_there = self.index.with_disk(prompt.names, prompt.num_tokens, own)
        from_disk = [end - start for end, start in zip(all_there, own, strict=True)]
        return list(map(_Expected, hits, reaches, all_there, from_disk))

    def _load(self, rank: int, counts: Sequence[float]) -> tuple[int, float]:
        """Return the tokens that wait on a rank, and its live requests.

        What this front end has sent is known to the token. What others have sent, where there are
        several, is known by number only: each counts like one of ours.
        """
        waiting, running, *_ = counts
        queued, own = self.sent.left_tokens[rank], self.sent.num_waiting[rank]
        others = max(waiting - own, 0) if self._client_count > 1 else 0
        if others:
            ours = sum(self.sent.num_waiting)
            queued += round(others * (sum(self.sent.left_tokens) / ours if ours else 0))
        return queued, max(waiting + running, own)

    @staticmethod
    def _reason(rank: int, expected: Sequence[_Expected]) -> str:
        hits = [(there.with_tier, there.hit_tokens) for there in expected]
        return "cache" if hits[rank] == max(hits) > min(hits) else "load"

    # What is heard of ranks and requests

    def hear(self, rank: int, news: CacheNews) -> bool:
        """Follow a rank's message; return whether all that it has cached must be asked for."""
        was_known = self.index.is_known(rank)
        self.sent.computed(rank, self.index.apply(rank, news), self.index.hash_tokens)
        is_known = self.index.is_known(rank)
        self.stats.num_gaps[rank] += was_known and not is_known
        return not is_known

    def first_token(self, request_id: str, hit_tokens: int | None = None) -> None:
        """A request has got its first token; ``hit_tokens``: what it hit, if that is told."""
        self.sent.finish(request_id)
        predicted = self._predicted.pop(request_id, None)
        if predicted is not None and hit_tokens is not None:
            self.stats.note_start(*predicted, hit_tokens)

    def finished(self, request_id: str) -> None:
        """A request has ended, perhaps before its first token."""
        self.sent.finish(request_id)
        self._predicted.pop(request_id, None)
        shared_name = self._live.pop(request_id, None)
        if shared_name is not None:
            self._sharers[shared_name] -= 1
            if not self._sharers[shared_name]:
                del self._sharers[shared_name]
