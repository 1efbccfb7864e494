# SPDX-License-Identifier: Apache-2.0
"""Whether the prefill side still holds the blocks that a decode side pulls.

The prefill side lets them go after a time limit, whether they were pulled or not. Its block ids
then name the rows of other requests. So the decode side asks before it pulls, and again when it has
pulled: what it read while the blocks went is worthless.

The question travels as a request for the metadata. A prefill side without this patch answers that
one with its metadata, in which the field that is looked for is missing; a decode side without this
patch never asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import msgspec
import zmq
from vllm.logger import init_logger
from vllm.utils.network_utils import make_zmq_path, make_zmq_socket

_logger = init_logger("vllm.plugins.vllm_ascend_backport")

# vllm-ascend's name of a request for the metadata; a plain one has "" behind it.
GET_METADATA = b"get_meta_msg"
_FIELD = "holds_blocks_of"
_MESSAGE = msgspec.msgpack.Decoder(tuple[bytes, dict[str, str]])
_ANSWER = msgspec.msgpack.Decoder(dict[str, Any])
# As long as vllm-ascend itself waits for metadata: three times a second.
PATIENCE_S = 3.0


class BlocksGoneError(RuntimeError):
    """The prefill side does not hold the blocks, or does not say so: what is read is worthless."""


class AnsweringSocket:
    """The prefill side's socket, which answers such questions itself and passes on all else."""

    def __init__(self, socket: zmq.Socket, holds: Callable[[str], bool]) -> None:
        """Take the socket, and what says whether the blocks of a request are still held."""
        self._socket = socket
        self._holds = holds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def recv_multipart(self) -> list[bytes]:
        """Return the next message that is no such question."""
        while True:
            frames = self._socket.recv_multipart()
            request_id = _asked_for(frames)
            if request_id is None:
                return frames
            answer = msgspec.msgpack.encode({_FIELD: self._holds(request_id)})
            self._socket.send_multipart((frames[0], b"", answer))


def _asked_for(frames: list[bytes]) -> str | None:
    """Return the request whose blocks a message asks for; ``None``: it is another message."""
    try:
        name, question = _MESSAGE.decode(frames[-1])
    except msgspec.DecodeError:
        return None
    return question.get(_FIELD) if name == GET_METADATA else None


def _connect(host: str, port: int) -> zmq.Socket:
    """Open a connection to the port at which a prefill side tells its metadata."""
    path = make_zmq_path("tcp", host, port)
    socket = make_zmq_socket(zmq.Context.instance(), path, zmq.REQ, bind=False, linger=0)
    patience_ms = int(PATIENCE_S * 1000)
    socket.setsockopt(zmq.SNDTIMEO, patience_ms)
    socket.setsockopt(zmq.RCVTIMEO, patience_ms)
    return socket


def _check(socket: zmq.Socket, side: str, request_id: str) -> bool:
    """Check that a request's blocks are held; return whether the prefill side can tell.

    Raises:
        BlocksGoneError: They are not, or there is no answer.
    """
    try:
        socket.send(msgspec.msgpack.encode((GET_METADATA, {_FIELD: request_id})))
        answer = _ANSWER.decode(socket.recv())
    except (zmq.ZMQError, msgspec.DecodeError) as error:
        raise BlocksGoneError(
            f"the prefill side {side} does not say whether it still holds the blocks of "
            f"request {request_id} ({error}): they are not used"
        ) from error
    is_held = answer.get(_FIELD)
    if is_held is False:
        raise BlocksGoneError(
            f"the prefill side {side} no longer holds the blocks of request {request_id}: it was "
            "restarted, or the pull came after the time limit that it waits for pulls "
            "(docs/faults.md, 'A pull that comes late'); they are not used"
        )
    return is_held is not None


@contextmanager
def pulled_while_held(host: str, port: int, request_id: str) -> Iterator[None]:
    """Check, before what is done inside and after it, that a request's blocks are held.

    Raises:
        BlocksGoneError: They were not held all the time.
    """
    side = f"{host}:{port}"
    with closing(_connect(host, port)) as socket:
        can_tell = _check(socket, side, request_id)
        yield
        if can_tell:
            _check(socket, side, request_id)
            return
    _logger.warning_once(
        "The prefill side %s cannot say whether it still holds the blocks that are pulled, because "
        "it runs without this project's patches. Pulls after its time limit give wrong answers",
        side,
    )
