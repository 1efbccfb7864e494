# SPDX-License-Identifier: Apache-2.0
"""Writes docs/settings.md and docs/settings.zh.md from the table of variables::

python -m tools.settings_page [--check]

The prose around the table is in ``tools/templates``; error messages are those that the code gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from tools.generated import DOCS, write_or_check
from tools.settings_zh import EFFECTS
from vllm_ascend.core.policy.switches import PrefixCacheConfig
from vllm_ascend.prefix_cache_config import VARIABLES, Variable, load_config
from vllm_ascend.releases import SUPPORTED

_TEMPLATES = Path(__file__).parent / "templates"
_PROFILE = "VLLM_ASCEND_PREFIX_CACHE_PROFILE"
# Values that people try, and that are refused.
_MISTAKES = (
    ("VLLM_ASCEND_DSV4_PARTIAL_HITS", "yes"),
    ("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "32k"),
    ("VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE", "256"),
)


class StaleTranslationError(ValueError):
    """A variable has no Chinese text, or its English text has changed since."""


def render(template: str, *, chinese: bool) -> str:
    """Return a settings page; the same table gives the same text.

    Raises:
        StaleTranslationError: See there.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        autoescape=False,
    )
    unset = "未设置" if chinese else "unset"
    rows = [
        {
            "name": variable.name,
            "allowed": ", ".join(f"`{value}`" for value in variable.values.split(", ")),
            "default": _shown(variable.default, unset),
            "best": _shown(_in_best_profile(variable), ""),
            "effect": chinese_effect(variable) if chinese else variable.effect,
        }
        for variable in VARIABLES
    ]
    return environment.get_template(template).render(
        rows=rows,
        errors=[_refusal(*mistake) for mistake in _MISTAKES],
        releases=SUPPORTED,
    )


def chinese_effect(variable: Variable) -> str:
    """Return a variable's effect in Chinese.

    Raises:
        StaleTranslationError: There is none, or it was made from another English text.
    """
    translation = EFFECTS.get(variable.name)
    if translation is None:
        raise StaleTranslationError(f"{variable.name}: add its effect to tools/settings_zh.py")
    if translation.english != variable.effect:
        raise StaleTranslationError(
            f"{variable.name}: its effect has changed; look at tools/settings_zh.py again"
        )
    return translation.chinese


def _in_best_profile(variable: Variable) -> Any:
    """Return what the profile ``best`` sets a variable to, ``None`` if it leaves it alone."""
    if variable.field is None or variable.name == _PROFILE:
        return None
    best = getattr(load_config({_PROFILE: "best"}), variable.field)
    return None if best == getattr(PrefixCacheConfig(), variable.field) else best


def _shown(value: Any, if_none: str) -> str:
    if value is None:
        return if_none
    return f"`{int(value) if isinstance(value, bool) else value}`"


def _refusal(name: str, value: str) -> str:
    """Return the sentence with which a mistake is refused."""
    try:
        load_config({name: value})
    except ValueError as error:
        return str(error)
    raise AssertionError(f"{name}={value} is no mistake")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or with ``--check`` return 1 if one is stale."""
    texts = {
        DOCS / "settings.md": render("settings.md.j2", chinese=False),
        DOCS / "settings.zh.md": render("settings.zh.md.j2", chinese=True),
    }
    return write_or_check(
        texts, arguments, description="Write the settings pages.", make="docs-pages"
    )


if __name__ == "__main__":
    raise SystemExit(main())
