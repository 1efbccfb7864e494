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
# Where the language switch leads from a page that has no version in that language.
_FIRST_PAGES = {"en": "index.md", "zh": "quick-start.zh.md"}
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


def on_page_context(context: Any, *, page: Any, config: Any, **_: Any) -> None:
    """Show a page in its own language, with a switch to the same page in the others.

    ``NAME.zh.md`` is the Chinese version of ``NAME.md``: file names that code hosts can follow as
    links, which rules out the folders per language that a plugin would want. A page without the
    other version leads to that language's first page. The theme and the list of languages belong
    to the whole site; they are set anew before each page is drawn.
    """
    name = page.file.src_uri.removesuffix(".md").removesuffix(".zh")
    urls = {file.src_uri: file.url for file in context["pages"]}
    versions = {"en": f"{name}.md", "zh": f"{name}.zh.md"}
    for alternate in config.extra["alternate"]:
        first_page = _FIRST_PAGES[alternate["lang"]]
        alternate["link"] = urls.get(versions[alternate["lang"]], urls.get(first_page))
    config.theme["language"] = page.meta.get("lang", "en")
