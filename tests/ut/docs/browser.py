# SPDX-License-Identifier: Apache-2.0
"""The search of a built site in a real browser: the headless Chromium that kaleido brings."""

from __future__ import annotations

import functools
import importlib.resources
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_READER = Path(__file__).with_name("search_box.js")
_FLAGS = (
    "--disable-gpu",
    # The reader's own page is another origin than the site that it looks at.
    "--disable-web-security",
    # Containers have little of it.
    "--disable-dev-shm-usage",
    # Root is refused one.
    "--no-sandbox",
)
_TIMEOUT_S = 240


class Search:
    """A site's search box, into which some words were typed."""

    def __init__(self, site: Path, words: Sequence[str]) -> None:
        """Load the site's first page, type one word after the other, and read the pages shown."""
        self.index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
        with _served(site) as url:
            found = _in_chromium({"url": f"{url}/index.html", "words": list(words)})
        self._pages = dict(zip(words, found, strict=True))

    def pages(self, typed: str) -> list[str]:
        """Return the pages that were shown for what was typed, the best match first."""
        return self._pages[typed]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing of what is asked for."""


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """Serve a folder's files to this machine alone."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _in_chromium(request: dict[str, Any]) -> list[list[str]]:
    """Have the reader answer a request."""
    home = Path(str(importlib.resources.files("kaleido"))) / "executable"
    # kaleido's own script that starts it splits paths at blanks.
    command = [home / "bin" / "kaleido", "plotly", f"--plotlyjs={_READER.as_uri()}", *_FLAGS]
    drawing = {"format": "svg", "data": {"data": [request], "layout": {}}}
    with tempfile.TemporaryDirectory() as scratch:
        ended = subprocess.run(
            command,
            cwd=home,
            env={
                **{name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
                "LD_LIBRARY_PATH": str(home / "lib"),
                "FONTCONFIG_PATH": str(home / "etc" / "fonts"),
                "XDG_DATA_HOME": str(home / "xdg"),
                "HOME": scratch,
                "TMPDIR": scratch,
            },
            input=json.dumps(drawing) + "\n",
            capture_output=True,
            encoding="utf-8",
            timeout=_TIMEOUT_S,
        )
    started, *answers = [json.loads(line) for line in ended.stdout.splitlines()] or [{}]
    assert started.get("code") == 0, f"Chromium does not start: {started} {ended.stderr}"
    (answer,) = answers
    assert answer["code"] == 0, answer["message"]
    return json.loads(answer["result"])
