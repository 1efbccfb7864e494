# SPDX-License-Identifier: Apache-2.0
"""How to be let in by a server: the API key and TLS, for every command that takes ``--url``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.prefix_cache_config import process_environment

API_KEY_VARIABLE = "OPENAI_API_KEY"
_API_KEY_OPTION = "--api-key"
_HIDDEN = "***"

ApiKey = Annotated[
    str | None,
    typer.Option(
        _API_KEY_OPTION,
        help="API key of the server at --url; it is never shown or stored.",
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


class ServerError(RuntimeError):
    """The server cannot be reached or answered wrongly; the message names the URL and what.

    Attributes:
        status: Of its answer, if there was one.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def base_url(url: str) -> str:
    """Return the address without a slash or ``/v1`` at its end.

    Raises:
        BadInputError: It is not an address of HTTP.
    """
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # no number of a port
        is_address = False
    if not is_address:
        raise BadInputError(f"--url {url}: expected http://HOST:PORT")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")
