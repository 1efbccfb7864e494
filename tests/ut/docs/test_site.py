# SPDX-License-Identifier: Apache-2.0
"""The documentation: it builds, it is up to date, and what it shows can be typed."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from tests.ut.docs.conftest import build
from vllm_ascend.__main__ import app

REPOSITORY = Path(__file__).parents[3]
DOCS = REPOSITORY / "docs"
PAGES = sorted(DOCS.glob("*.md"))
GROUP = typer.main.get_command(app)
# `make TARGET` in a sentence, or a line of a block.
_MAKE = re.compile(r"(?:`|^(?:[A-Z_]+=\S+ )*)make ([a-z-]+)(?=`| +[#A-Z]|$)", re.MULTILINE)
# `python -m PACKAGE[.MODULE] ...`, up to what ends a command in a shell or in a sentence.
_INVOCATION = re.compile(r"python3? -m ((?:vllm_ascend|benchmarks|tools)[\w.]*)([^`|#\n]*)")


def invocations() -> Iterator[tuple[str, str, str]]:
    """Yield (file, module, arguments) of every command of ours in the pages and the README."""
    for page in [*PAGES, REPOSITORY / "README.md"]:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for match in _INVOCATION.finditer(text):
            # Behind ` -- ` stands a command of somebody else.
            yield page.name, match[1].rstrip("."), match[2].split(" -- ")[0]


def test_the_site_builds_strictly(site: Path) -> None:
    for page in PAGES:
        assert (site / f"{page.stem}.html").is_file()


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[page](nowhere.md), [source](../nowhere.py)")
    (tmp_path / "mkdocs.yml").write_text(
        f"INHERIT: {REPOSITORY}/mkdocs.yml\n"
        f"hooks: [{REPOSITORY}/tools/site_hooks.py]\n"
        "nav: [index.md]\n"
    )
    built = build("--config-file", str(tmp_path / "mkdocs.yml"))
    assert built.returncode != 0
    assert "nowhere.md" in built.stderr and "nowhere.py" in built.stderr


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    loads = re.compile(
        r'<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)="(?:https?:)?//[^"]*'
    )
    for page in site.glob("*.html"):
        assert not loads.findall(page.read_text(encoding="utf-8")), page.name


def languages_offered(page: Path) -> dict[str, str]:
    """Return where the language switch of a page leads, by language."""
    links = re.findall(
        r'<a href="([^"]+)" hreflang="([^"]+)" class="md-select__link"', page.read_text("utf-8")
    )
    return {language: link for link, language in links}


def test_a_page_is_drawn_in_its_own_language(site: Path) -> None:
    chinese = {page.stem for page in PAGES if page.stem.endswith(".zh")}
    for page in site.glob("*.html"):
        language = "zh" if page.stem in chinese else "en"
        assert f'<html lang="{language}"' in page.read_text(encoding="utf-8"), page.name


def test_the_language_switch_keeps_the_page(site: Path) -> None:
    assert {f"{page.stem}.html" for page in PAGES} <= {page.name for page in site.glob("*.html")}
    for name in (page.stem for page in PAGES if page.stem.endswith(".zh")):
        both = {"en": f"{name.removesuffix('.zh')}.html", "zh": f"{name}.html"}
        assert languages_offered(site / both["en"]) == both
        assert languages_offered(site / both["zh"]) == both
    only_english = {"en": "patches.html", "zh": "quick-start.zh.html"}
    assert languages_offered(site / "patches.html") == only_english


def test_blocks_can_be_copied_and_run() -> None:
    """No prompt in front of a command, and no output below it: outputs are blocks of their own."""
    for page in [*PAGES, REPOSITORY / "README.md"]:
        for line in page.read_text(encoding="utf-8").splitlines():
            assert not re.match(r"\s*(\$ |```console)", line), f"{page.name}: {line}"


@pytest.mark.parametrize(
    "generator", ["tools.settings_page", "tools.drawings.__main__", "tools.patch_ledger"]
)
def test_generated_pages_are_up_to_date(generator: str) -> None:
    assert importlib.import_module(generator).main(["--check"]) == 0


def test_every_picture_is_shown_somewhere() -> None:
    texts = [page.read_text(encoding="utf-8") for page in [*PAGES, REPOSITORY / "README.md"]]
    for picture in (DOCS / "images").iterdir():
        assert any(f"images/{picture.name}" in text for text in texts), picture.name


def test_every_command_shown_exists() -> None:
    for page, module, arguments in invocations():
        assert importlib.util.find_spec(module) is not None, f"{page}: {module}"
        words = re.findall(r"^ +([a-z][a-z-]*)", arguments)
        if module == "vllm_ascend" and words:
            assert words[0] in GROUP.list_commands(None), f"{page}: {module} {words[0]}"


def test_every_option_shown_exists() -> None:
    for page, module, arguments in invocations():
        command = GROUP
        words = arguments.split()
        if module != "vllm_ascend" or not words:
            continue
        while words and hasattr(command, "list_commands"):
            found = command.get_command(None, words[0])
            if found is None:
                break
            command = found
            words.pop(0)
        known = {name for option in command.params for name in option.opts + option.secondary_opts}
        shown = {word for word in words if re.fullmatch(r"--[a-z][a-z-]*", word)}
        assert shown <= known | {"--help"}, f"{page}: {command.name} {sorted(shown - known)}"


def test_every_make_target_shown_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        shown = set(_MAKE.findall(page.read_text(encoding="utf-8")))
        assert shown <= targets, f"{page.name}: make {sorted(shown - targets)}"
