# SPDX-License-Identifier: Apache-2.0
"""How to be let in by a server: the API key and TLS, for every command that takes ``--url``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from vllm_ascend.prefix_cache_config import process_environment
from vllm_ascend.replay.trace import BadInputError

API_KEY_VARIABLE = "OPENAI_API_KEY"
_API_KEY_OPTION = "--api-key"
_HIDDEN = "***"

ApiKey = Annotated[
    str | None,
    typer.Option(
        _API_KEY_OPTION,
        help="API key of the server at --url; it is shown and kept nowhere.",
        show_default=f"what the variable {API_KEY_VARIABLE} holds",
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Take any TLS certificate of --url, unverified.")
]


@dataclass(frozen=True)
class HttpAccess:
    """What a client needs besides the address.

    Attributes:
        api_key: Sent as bearer token; never part of a report or of the ``repr``.
        verify_tls: Whether the server's certificate is verified.
    """

    api_key: str | None = field(default=None, repr=False)
    verify_tls: bool = True

    @classmethod
    def of(
        cls, api_key: str | None, *, insecure: bool, environ: Mapping[str, str] | None = None
    ) -> HttpAccess:
        """Return what the options say, and the environment where they say nothing.

        Args:
            api_key: ``--api-key``; ``None`` if it was not given.
            insecure: ``--insecure``.
            environ: What to read; the process's environment by default. An empty variable counts
                as unset.

        Raises:
            BadInputError: The key cannot stand in a header; the key itself is not repeated.
        """
        environ = process_environment() if environ is None else environ
        name = API_KEY_VARIABLE if api_key is None else _API_KEY_OPTION
        key = environ.get(API_KEY_VARIABLE) or None if api_key is None else api_key
        if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key):
            raise BadInputError(f"{name}: expected printable ASCII without blanks at its ends")
        if key == "":
            raise BadInputError(f"{name}: is empty")
        return cls(key, verify_tls=not insecure)

    def client_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of ``httpx.Client`` and ``httpx.AsyncClient``."""
        headers = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        return {"headers": headers, "verify": self.verify_tls}


def without_api_key(arguments: Sequence[str]) -> list[str]:
    """Return a command line as reports may hold it: with ``***`` in place of the API key."""
    shown: list[str] = []
    for argument in arguments:
        option, equals, _ = argument.partition("=")
        if shown and shown[-1] == _API_KEY_OPTION:
            shown.append(_HIDDEN)
        elif option == _API_KEY_OPTION and equals:
            shown.append(f"{option}={_HIDDEN}")
        else:
            shown.append(argument)
    return shown
