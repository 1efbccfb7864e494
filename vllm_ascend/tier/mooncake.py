# SPDX-License-Identifier: Apache-2.0
"""Backend ``mooncake``: objects in a Mooncake Store, which engines of many nodes share.

Its Python package comes with Mooncake (``mooncake-transfer-engine``, ``-npu`` or ``-non-cuda``).
What goes wrong between here and the store is an object that is not there.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Container, Sequence
from hashlib import sha256
from typing import Any

from vllm_ascend.tier.mooncake_settings import MooncakeSettings
from vllm_ascend.tier.objects import Bytes, Gone, seal, why_unusable
from vllm_ascend.tier.tail_choice import KEPT, MARGINAL

_PRESENT = 1
# Keys, each about 100 bytes of memory.
_MOST_KNOWN = 1 << 20


class MooncakeError(RuntimeError):
    """The store cannot be reached, or Mooncake is not installed."""


def store_class() -> Any:
    """Return the class of Mooncake's clients.

    Raises:
        MooncakeError: Its package is not installed, or cannot be imported here; says what to do.
    """
    try:
        from mooncake.store import MooncakeDistributedStore
    except ModuleNotFoundError as error:
        raise MooncakeError(
            "the tier's backend mooncake needs Mooncake's Python package, which is not installed "
            "here: install mooncake-transfer-engine-npu, or mooncake-transfer-engine-non-cuda for "
            "TCP"
        ) from error
    except ImportError as error:
        # For example "libibverbs.so.1: cannot open shared object file: No such file or directory".
        library = re.match(r"(lib\S+\.so\S*): cannot open", str(error))
        cause = f"the system library {library[1]} is missing" if library else str(error)
        raise MooncakeError(
            f"the tier's backend mooncake cannot import Mooncake's Python package: {cause}"
        ) from error
    return MooncakeDistributedStore


def connect(settings: MooncakeSettings, *, gives_memory: bool) -> Any:
    """Return a client of the store.

    Args:
        gives_memory: The process gives the store its share of memory; a scheduler only asks.

    Raises:
        MooncakeError: Says what is wrong and what to do.
    """
    store = store_class()()
    status = store.setup(
        settings.local_hostname,
        settings.metadata_server,
        settings.global_segment_size if gives_memory else 0,
        settings.local_buffer_size,
        settings.protocol,
        settings.device_name,
        settings.master_server_address,
    )
    if status != 0:
        raise MooncakeError(
            f"Mooncake Store does not answer at {settings.master_server_address} (metadata server "
            f"{settings.metadata_server}, {settings.protocol}; error {status}): start "
            "mooncake_master, or mend the address"
        )
    return store


class MooncakeKeys:
    """What objects are called in the store: text, and one object per part."""

    def __init__(self, digest: str, num_parts: int) -> None:
        """Take the layout's digest, and how many ranks store parts of their own."""
        self.digest, self.num_parts = digest, num_parts

    def name(self, key: bytes, part: int) -> str:
        """Return the name of a part of an object."""
        suffix = f"-{part}" if self.num_parts > 1 else ""
        return f"vat-{self.digest}-{key.hex()}{suffix}"

    def names(self, keys: Sequence[bytes]) -> list[str]:
        """Return the names of all parts of objects, those of one object side by side."""
        return [self.name(key, part) for key in keys for part in range(self.num_parts)]


class MooncakeIndex:
    """The scheduler's half: asks the store, and remembers what need not be sent to it again.

    Only :meth:`contains` and :meth:`clear` reach the store. They may take long, and change nothing
    here: any thread may call them. All else is for the scheduler's thread.

    Attributes:
        now: Counts what is stored. An answer is older than what was stored since it was asked for.
    """

    is_remote = True

    def __init__(self, client: Any, keys: MooncakeKeys) -> None:
        self._client, self._keys = client, keys
        self._known: dict[bytes, int] = {}
        self._gone: list[bytes] = []
        self.now = 0

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        """Return for each key whether all its parts are there, in one call to the store.

        Raises:
            MooncakeError: The store does not answer.
        """
        if not keys:
            return []
        statuses = self._client.batch_is_exist(self._keys.names(keys))
        if any(status < 0 for status in statuses):
            raise MooncakeError(f"Mooncake Store does not answer (error {min(statuses)})")
        parts = self._keys.num_parts
        found = [status == _PRESENT for status in statuses]
        if parts > 1:
            found = [all(found[i : i + parts]) for i in range(0, len(found), parts)]
        return found

    def note(self, keys: Sequence[bytes], found: Sequence[bool], asked_at: int) -> None:
        """Remember an answer of :meth:`contains`.

        Args:
            asked_at: What ``now`` was before the store was asked.
        """
        for key, is_there in zip(keys, found, strict=True):
            if is_there:
                self._known.setdefault(key, asked_at)
            elif self._known.get(key, asked_at) <= asked_at:
                self._forget(key)
        self._bound()

    def _forget(self, key: bytes) -> None:
        if key in self._known:
            del self._known[key]
            self._gone.append(key)

    def _bound(self) -> None:
        excess = len(self._known) - _MOST_KNOWN
        for key in list(itertools.islice(self._known, max(excess, 0))):
            self._forget(key)

    def is_known(self, key: bytes) -> bool:
        """Whether an object was there when it was last asked for, or is being stored."""
        return key in self._known

    @property
    def known(self) -> Container[bytes]:
        """The objects of which :meth:`is_known` says so."""
        return self._known

    def has_room(self, num_bytes: int, num_parts: int, rank: int) -> bool:
        """Whether an object of a rank is stored.

        The store knows no ranks, so spare tails would take the place of what others need.
        """
        return rank >= MARGINAL

    def reserve(
        self, keys: Sequence[bytes], num_bytes: int, num_parts: int = 1, rank: int = KEPT
    ) -> list[int]:
        """Remember that objects are being stored; the store itself decides where."""
        self._store(keys)
        return [0] * len(keys)

    def stored(self, key: bytes) -> None:
        """An object was stored, whatever a look-up said of it meanwhile."""
        self._store((key,))

    def _store(self, keys: Sequence[bytes]) -> None:
        self.now += 1
        self._known.update(dict.fromkeys(keys, self.now))
        self._bound()

    def drop(self, key: bytes, *, by_writer: bool = False) -> None:
        """An object was not stored, or cannot be used; it may be stored again."""
        self._forget(key)

    def use(self, keys: Sequence[bytes]) -> list[int]:
        """Nothing is held: what vanishes before it is loaded is a load that fails."""
        return [0] * len(keys)

    def release(self, keys: Sequence[bytes]) -> None:
        """Nothing was held."""

    def touch(self, keys: Sequence[bytes]) -> None:
        """The store notes itself what is used."""

    def forget_first(self, key: bytes) -> None:
        """The store decides itself what it gives up."""

    def take_gone(self) -> Gone:
        """Return the objects that were forgotten since the last call; the store tells no more."""
        gone, self._gone = Gone(self._gone, 0), []
        return gone

    def forget_all(self) -> None:
        """Nothing that was stored so far may be found any more; :meth:`clear` removes it."""
        self.now += 1
        self._gone += self._known
        self._known.clear()

    def clear(self) -> bool:
        """Remove all objects of this layout, whoever has stored them; return whether that is done.

        What is being stored meanwhile stays.
        """
        return _removed(self._client.remove_by_regex, f"^vat-{self._keys.digest}-.*")

    def close(self) -> None:
        """Leave the store."""
        self._client.close()


class MooncakeStore:
    """The workers' half: stores and loads parts of objects through registered buffers."""

    def __init__(self, client: Any, keys: MooncakeKeys, part: int) -> None:
        self._client, self._keys, self._part = client, keys, part

    def attach(self, address: object) -> None:
        """There is no memory of the scheduler's."""

    def register(self, buffer: Bytes) -> None:
        """Let the store read and write a buffer.

        Raises:
            MooncakeError: It refuses.
        """
        if status := self._client.register_buffer(buffer.ctypes.data, buffer.nbytes):
            raise MooncakeError(f"Mooncake refuses a buffer of {buffer.nbytes:,} bytes ({status})")

    def write(
        self, keys: Sequence[bytes], places: object, objects: Sequence[Bytes], layout: bytes
    ) -> list[bool]:
        """Store objects; see the host backend's."""
        names = [self._keys.name(key, self._part) for key in keys]
        for name, data in zip(names, objects, strict=True):
            seal(data, layout, _short(name))
        addresses = [data.ctypes.data for data in objects]
        statuses = self._client.batch_put_from(names, addresses, [o.nbytes for o in objects])
        return [status == 0 for status in statuses]

    def read(
        self, keys: Sequence[bytes], places: object, targets: Sequence[Bytes], layout: bytes
    ) -> list[str | None]:
        """Load objects; see the host backend's. What is there and unusable is removed, or nobody
        could store it anew.
        """
        names = [self._keys.name(key, self._part) for key in keys]
        addresses = [target.ctypes.data for target in targets]
        sizes = [target.nbytes for target in targets]
        for target in targets:
            target[:8] = 0  # what an earlier load has left must not be taken for this one
        received = self._client.batch_get_into(names, addresses, sizes)
        reasons: list[str | None] = []
        for name, target, count in zip(names, targets, received, strict=True):
            if count < 0:
                reasons.append("gone")
                continue
            is_whole = count == target.nbytes
            why = why_unusable(target, layout, _short(name)) if is_whole else "torn"
            if why is not None:
                _removed(self._client.remove, name)
            reasons.append(why)
        return reasons

    def close(self) -> None:
        """Leave the store."""
        self._client.close()


def _removed(remove: Callable[[str, bool], int], what: str) -> bool:
    """Remove objects, also those asked for lately, which the store keeps if it is not forced."""
    try:
        return remove(what, True) >= 0
    except TypeError:  # an older Mooncake cannot be forced
        return False


def _short(name: str) -> bytes:
    return sha256(name.encode()).digest()[:16]
