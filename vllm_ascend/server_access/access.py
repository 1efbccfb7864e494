# SPDX-License-Identifier: Apache-2.0
"""How a server lets a command in that takes ``--url``: by a key, or name and password; TLS."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import httpx
import typer

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.prefix_cache_config import process_environment

API_KEY_VARIABLE = "OPENAI_API_KEY"
_API_KEY_OPTION = "--api-key"
_HIDDEN = "***"
# vLLM closes a connection that was idle for 5 s, and a request that is on its way then is lost.
IDLE_SECONDS = 2.0
# Whatever stands before the host. A password may hold slashes; no host holds an @.
_CREDENTIALS = re.compile(r"(?<=://)\S*@")

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
        login: Name and password of HTTP's basic authentication, in place of the key; as secret.
    """

    api_key: str | None = field(default=None, repr=False)
    verify_tls: bool = True
    login: tuple[str, str] | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        api_key: str | None,
        *,
        insecure: bool,
        url: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> HttpAccess:
        """Return what the options say, and the environment where they say nothing.

        Args:
            api_key: ``--api-key``; ``None`` if it was not given.
            insecure: ``--insecure``.
            url: ``--url``, which may hold a name and a password before its host.
            environ: What to read; the process's environment by default. An empty variable counts
                as unset.

        Raises:
            BadInputError: The key cannot stand in a header, or stands beside a password; neither
                is repeated.
        """
        environ = process_environment() if environ is None else environ
        name = API_KEY_VARIABLE if api_key is None else _API_KEY_OPTION
        key = environ.get(API_KEY_VARIABLE) or None if api_key is None else api_key
        if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key):
            raise BadInputError(f"{name}: expected printable ASCII without blanks at its ends")
        if key == "":
            raise BadInputError(f"{name}: is empty")
        login = _login_of(url) if url else None
        if login is None:
            return cls(key, verify_tls=not insecure)
        if api_key is not None:
            raise BadInputError(f"{_API_KEY_OPTION}: --url holds a name and a password; give one")
        return cls(None, verify_tls=not insecure, login=login)

    @property
    def headers(self) -> dict[str, str]:
        """What a request carries."""
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}

    def client_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of ``httpx.Client`` and ``httpx.AsyncClient``.

        The client may have any number of connections, and uses none that was idle for seconds. It
        asks no proxy, which would count as part of the server.
        """
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_SECONDS
        )
        return {
            "headers": self.headers,
            "verify": self.verify_tls,
            "auth": self.login,
            "limits": limits,
            "trust_env": False,
        }


def _login_of(url: str) -> tuple[str, str] | None:
    base_url(url)
    parts = urlsplit(url)
    if parts.username is None and parts.password is None:
        return None
    return unquote(parts.username or ""), unquote(parts.password or "")


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """Return a command line as reports may hold it.

    ``***`` takes the place of the API key, and of the name and password of an address.
    """
    shown: list[str] = []
    for argument in arguments:
        option, equals, _ = argument.partition("=")
        if shown and shown[-1] == _API_KEY_OPTION:
            shown.append(_HIDDEN)
        elif option == _API_KEY_OPTION and equals:
            shown.append(f"{option}={_HIDDEN}")
        else:
            shown.append(shown_url(argument))
    return shown


def shown_url(url: str) -> str:
    """Return an address, or a text with one, as it may be shown: without name and password."""
    return _CREDENTIALS.sub(f"{_HIDDEN}@", url)


class ServerError(RuntimeError):
    """The server cannot be reached or answered wrongly; the message names the URL and what.

    Attributes:
        status: Of its answer, if there was one.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def base_url(url: str) -> str:
    """Return the address without name and password, and without a slash or ``/v1`` at its end.

    Raises:
        BadInputError: It is not an address of HTTP, or has more behind its path; what may be secret
            in it is not repeated.
    """
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # no number of a port
        is_address = False
    if not is_address:
        raise BadInputError(f"--url {shown_url(url)}: expected http://HOST:PORT")
    host = parts.netloc.rpartition("@")[2]
    address = f"{parts.scheme}://{host}{parts.path}"
    if parts.query or parts.fragment:
        raise BadInputError(f"--url {address}: expected nothing behind the path")
    return address.rstrip("/").removesuffix("/v1").rstrip("/")
