# SPDX-License-Identifier: Apache-2.0
"""API keys and TLS: where they come from, what the client gets, and that no key is shown."""

import httpx
import pytest

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.server_access.access import HttpAccess, base_url, shown_url, without_secrets


@pytest.mark.parametrize(
    ("option", "variable", "key"),
    [
        (None, None, None),
        (None, "", None),
        (None, "from-variable", "from-variable"),
        ("from-option", None, "from-option"),
        ("from-option", "from-variable", "from-option"),
    ],
)
def test_the_option_comes_before_the_variable(option, variable, key):
    environ = {} if variable is None else {"OPENAI_API_KEY": variable}
    assert HttpAccess.of(option, insecure=False, environ=environ).api_key == key


def test_by_default_the_process_environment_is_read(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-process")
    assert HttpAccess.of(None, insecure=False).api_key == "of-the-process"


def test_what_the_client_gets():
    with httpx.Client(**HttpAccess("secret").client_arguments()) as client:
        assert client.headers["Authorization"] == "Bearer secret"
    with httpx.Client(**HttpAccess.of(None, insecure=True, environ={}).client_arguments()) as http:
        assert "Authorization" not in http.headers
    limits = HttpAccess().client_arguments()["limits"]
    assert limits.max_connections is None and limits.keepalive_expiry < 5  # vLLM closes them then
    assert HttpAccess("secret").client_arguments()["verify"] is True
    assert HttpAccess.of(None, insecure=True, environ={}).client_arguments()["verify"] is False


@pytest.mark.parametrize("key", ["", " ", "two\nlines", "k\u00e4se", " secret"])
def test_a_key_that_no_header_takes_is_refused_unrepeated(key):
    with pytest.raises(BadInputError, match=r"^--api-key: ") as caught:
        HttpAccess.of(key, insecure=False, environ={})
    assert not key.strip() or key.strip() not in str(caught.value)
    if key:
        with pytest.raises(BadInputError, match=r"^OPENAI_API_KEY: "):
            HttpAccess.of(None, insecure=False, environ={"OPENAI_API_KEY": key})


def test_no_key_is_shown():
    assert "secret" not in repr(HttpAccess("secret"))
    line = ["replay", "--api-key", "secret", "--api-key=secret", "--url", "http://h"]
    assert without_secrets(line) == [
        *("replay", "--api-key", "***", "--api-key=***", "--url", "http://h")
    ]


# Name and password in the address.

URLS = ["http://user:S3cret@host:8000/v1", "https://user:S3cret%2F@host", "http://S3cret@host/llm"]


@pytest.mark.parametrize("url", URLS)
def test_a_password_in_the_address_goes_to_the_server_alone(url):
    seen = []
    access = HttpAccess.of(None, insecure=False, url=url, environ={"OPENAI_API_KEY": "key"})
    transport = httpx.MockTransport(lambda request: seen.append(request) or httpx.Response(200))
    with httpx.Client(transport=transport, **access.client_arguments()) as client:
        client.get(base_url(url))
    with httpx.Client(transport=transport) as client:
        client.get(url)  # as httpx reads it
    ours, expected = seen
    assert ours.headers["Authorization"] == expected.headers["Authorization"]
    assert "S3cret" not in str(ours.url) and ours.url.host == "host"
    assert "S3cret" not in repr(access) and access.api_key is None
    assert HttpAccess.of("key", insecure=False, url="http://host").login is None


def test_a_password_beside_a_key_is_refused():
    with pytest.raises(BadInputError, match=r"^--api-key: ") as caught:
        HttpAccess.of("key", insecure=False, url=URLS[0])
    assert "S3cret" not in str(caught.value)


@pytest.mark.parametrize("url", URLS)
def test_reports_show_the_host_alone(url):
    host = url.rpartition("@")[2]
    line = ["replay", "--url", url, f"--url={url}", "--workload", "W1"]
    scheme = url.partition("://")[0]
    shown = f"{scheme}://***@{host}"
    assert without_secrets(line) == [*("replay", "--url", shown, f"--url={shown}"), *line[-2:]]
    assert base_url(url) == f"{scheme}://{host}".removesuffix("/v1")


@pytest.mark.parametrize(
    "url",
    [
        "http://user:S3cret@host:x",
        "http://user:S3/cret@host",
        "http://user:S3@cret@host:99999",
        "http://host/?token=S3cret",
        "http://host/#S3cret",
        "ftp://user:S3cret@host",
    ],
)
def test_an_address_that_is_refused_is_not_repeated_whole(url):
    with pytest.raises(BadInputError, match=r"^--url .*host") as caught:
        base_url(url)
    assert "cret" not in str(caught.value)
    assert shown_url("http://host:8000/v1") == "http://host:8000/v1"
