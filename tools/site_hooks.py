# SPDX-License-Identifier: Apache-2.0
"""Hooks of the documentation site (mkdocs.yml, ``hooks``)."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).parents[1]
# A link that leaves docs/: [text](../path); pages lie flat in docs/.
_LINK_TO_SOURCE = re.compile(r"\[([^\]]+)\]\(\.\./([^)\s#]+)(#[^)\s]*)?\)")
_logger = logging.getLogger("mkdocs.hooks")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Point links to the project's sources at ``repo_url``, or leave their text without one.

    On a code host such links work as they are; on the site the sources are not there. A link to a
    file that does not exist is a warning, and so fails a strict build.
    """

    def linked(match: re.Match[str]) -> str:
        text, path = match[1], match[2]
        if not (_REPOSITORY / path).exists():
            _logger.warning("%s links to ../%s, which does not exist", page.file.src_path, path)
        if not config.repo_url:
            return text
        return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path})"

    return _LINK_TO_SOURCE.sub(linked, markdown)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Say in which language a page is (``lang`` in its front matter), for fonts and readers."""
    language = page.meta.get("lang")
    return output.replace('<html lang="en"', f'<html lang="{language}"') if language else output
