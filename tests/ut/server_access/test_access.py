# SPDX-License-Identifier: Apache-2.0
"""API keys and TLS: where they come from, what the client gets, and that no key is shown."""

import httpx
import pytest

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.server_access.access import HttpAccess, without_api_key


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
    assert without_api_key(line) == [
        *("replay", "--api-key", "***", "--api-key=***", "--url", "http://h")
    ]
