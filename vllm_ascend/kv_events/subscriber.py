# SPDX-License-Identifier: Apache-2.0
"""Follows one publisher of KV events over ZMQ: every batch once, in order, or a clear error.

vLLM's publisher numbers its batches and answers requests for past ones as long as it keeps them
(``buffer_steps``). A subscriber that comes late, or lost something on the way, asks for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

_SEQUENCE_BYTES = 8
_END_OF_REPLAY = (-1).to_bytes(_SEQUENCE_BYTES, "big", signed=True)


class MissedEventsError(RuntimeError):
    """Batches are gone for good: what was built from the others is not the cache any more.

    Start over with an empty index. It is exact again from the publisher's next start or the next
    reset of its cache, whichever comes first; the subscriber itself goes on.

    Attributes:
        next_batch: The first batch behind the gap; the subscriber still yields it.
    """

    def __init__(self, message: str, next_batch: Any) -> None:
        super().__init__(message)
        self.next_batch = next_batch


class Subscriber:
    """One engine, or one data parallel rank of it. Not safe for use by several threads."""

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str | None,
        decode: Callable[[bytes], Any],
        topic: str = "",
        replay_timeout_s: float = 5.0,
    ) -> None:
        """Connect; nothing is read yet.

        Args:
            endpoint: As seen from here, e.g. ``tcp://pod:5557`` (plus the data parallel rank).
            replay_endpoint: The publisher's ``replay_endpoint``; without it any gap is an error.
            decode: Turns a payload into a batch with ``ts`` and ``events``, e.g. msgspec's decoder
                of vLLM's ``KVEventBatch``.
            topic: Only topics that start with this.
            replay_timeout_s: How long the publisher may be silent while it replays.
        """
        self._context: zmq.Context = zmq.Context.instance()
        self._live = self._context.socket(zmq.SUB)
        self._live.setsockopt_string(zmq.SUBSCRIBE, topic)
        self._connections = self._live.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._has_lost_connection = False
        self._live.connect(endpoint)
        self._replay_endpoint = replay_endpoint
        self._decode = decode
        self._replay_timeout_ms = int(replay_timeout_s * 1000)
        self._next_sequence = 0
        self._last_ts = 0.0
        self._pending: deque[tuple[int, Any]] = deque()
        self._has_asked = False

    def close(self) -> None:
        """Disconnect."""
        self._live.disable_monitor()
        self._live.close(linger=0)

    def batches(self, timeout_s: float) -> Iterator[Any]:
        """Yield batches as they come, until none has come for ``timeout_s``.

        Raises:
            MissedEventsError: Batches are missing, or the publisher was started anew. The next
                call goes on behind the gap.
        """
        if not self._has_asked:
            self._has_asked = True
            self._pending.extend(self._replayed(self._next_sequence))
        while True:
            while self._pending:
                sequence, batch = self._pending.popleft()
                if sequence == self._next_sequence:
                    self._check_publisher(sequence, batch)
                    self._next_sequence, self._last_ts = sequence + 1, batch.ts
                    yield batch
                elif sequence > self._next_sequence:
                    self._fill_gap(sequence, batch)
                elif batch.ts > self._last_ts:
                    self._start_over(sequence, batch)
            if not self._live.poll(int(timeout_s * 1000)):
                return
            self._pending.append(self._read(*self._live.recv_multipart()[1:]))

    def _check_publisher(self, sequence: int, batch: Any) -> None:
        """Start over if numbers go on, but after a lost connection, and not those of before."""
        while self._connections.poll(0):
            recv_monitor_message(self._connections)
            self._has_lost_connection = True
        if not self._has_lost_connection:
            return
        self._has_lost_connection = False
        if sequence:
            last = self._replayed(sequence - 1)[:1]
            if not last or (last[0][0], last[0][1].ts) != (sequence - 1, self._last_ts):
                self._start_over(sequence, batch)

    def _fill_gap(self, sequence: int, batch: Any) -> None:
        """Put what is missing before a batch in front of it."""
        last = self._next_sequence - 1
        missing = self._replayed(max(last, 0))
        # The last one that was read comes once more: another one means another publisher.
        is_known = bool(missing) and missing[0][0] == last
        if is_known and missing.pop(0)[1].ts != self._last_ts:
            self._start_over(sequence, batch)
        self._pending.extendleft(reversed([*missing, (sequence, batch)]))
        expected, (first, next_batch) = self._next_sequence, self._pending[0]
        if first > expected:
            self._next_sequence = first
            raise MissedEventsError(
                f"batches {expected} to {first - 1} are not kept by the publisher any more",
                next_batch,
            )

    def _start_over(self, sequence: int, batch: Any) -> None:
        """Numbers began anew, and so did the engine's cache."""
        self._next_sequence = 0 if self._replay_endpoint is not None else sequence
        self._pending.appendleft((sequence, batch))
        raise MissedEventsError("the publisher was started anew", batch)

    def _replayed(self, first: int) -> list[tuple[int, Any]]:
        """Return what the publisher still has from a batch on.

        An answer does not say to which question it belongs. So each question has a socket of its
        own: what comes after the time is over, or was asked before anybody listened, goes with it.
        """
        if self._replay_endpoint is None:
            return []
        replayed: list[tuple[int, Any]] = []
        # A REQ socket takes one answer per request; here there are many.
        with self._context.socket(zmq.DEALER) as replay:
            replay.setsockopt(zmq.LINGER, 0)
            replay.connect(self._replay_endpoint)
            replay.send_multipart([b"", first.to_bytes(_SEQUENCE_BYTES, "big")])
            while replay.poll(self._replay_timeout_ms):
                # Behind an empty frame; later releases of vLLM put the topic between.
                *_, sequence_bytes, payload = replay.recv_multipart()
                if sequence_bytes == _END_OF_REPLAY:
                    break
                replayed.append(self._read(sequence_bytes, payload))
        return replayed

    def _read(self, sequence_bytes: bytes, payload: bytes) -> tuple[int, Any]:
        return int.from_bytes(sequence_bytes, "big"), self._decode(payload)
