# SPDX-License-Identifier: Apache-2.0
"""The search of a built site, run by the program that a browser runs: the theme's own worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import quickjs

# What a browser gives to a worker, as far as this one asks for it.
_WORKER_SCOPE = """
var self = globalThis, told = [], hear;
var console = {warn(text) { throw new Error(text); }};
function addEventListener(_, listener) { hear = listener; }
function postMessage(message) { told.push(message); }
"""
# Of messages to and from the worker.
_SETUP, _READY, _QUERY, _RESULT = 0, 1, 2, 3


class Search:
    """A site's search box."""

    def __init__(self, site: Path) -> None:
        """Start the worker and hand it the index, as a page does when it is loaded."""
        (worker,) = site.glob("assets/javascripts/workers/search.*.min.js")
        self.index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
        self._context = quickjs.Context()
        self._context.eval(_WORKER_SCOPE)
        self._context.eval(worker.read_text("utf-8"))
        told = self._tell(_SETUP, {**self.index, "options": {"suggest": False}})
        assert told == {"type": _READY}

    def pages(self, typed: str) -> list[str]:
        """Return the pages that are shown for what is typed, the best match first."""
        told = self._tell(_QUERY, typed)
        assert told["type"] == _RESULT
        return [group[0]["location"].partition("#")[0] for group in told["data"]["items"]]

    def _tell(self, kind: int, data: Any) -> dict[str, Any]:
        message = json.dumps({"data": {"type": kind, "data": data}})
        self._context.eval(f"told.length = 0; hear({message});")
        while self._context.execute_pending_job():
            pass
        (answer,) = json.loads(self._context.eval("JSON.stringify(told)"))
        return answer
