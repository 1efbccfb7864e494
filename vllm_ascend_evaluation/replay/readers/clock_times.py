# SPDX-License-Identifier: Apache-2.0
"""When a request was sent, as logs spell it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from vllm_ascend.command_line.bad_input import BadInputError

# What tells when a request or a message was sent, in the order of preference.
TIMES = ("timestamp", "created_at", "create_time", "created")
# Numbers of this size are seconds since 1970, of the years 2001 to 2286; others are milliseconds.
_SECONDS = range(10**9, 10**10)
_EXPECTED = "expected a number >= 0 or a time of ISO 8601"
# Python would read some such texts as dates.
_NUMBER = re.compile(r"\d+(\.\d*)?", re.ASCII)


def time_of(record: Mapping[str, Any], place: str) -> float | None:
    """Return when something was sent, in milliseconds since any moment; ``None`` if nobody says.

    A number, also one in quotes, is in milliseconds, but in seconds where it has the size of
    seconds since 1970. Another text is a date and time of ISO 8601; without a time zone it is taken
    for UTC.

    Raises:
        BadInputError: It is something else.
    """
    for name in TIMES:
        value = record.get(name)
        if value is None:
            continue
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            value = float(value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and 0 <= value < math.inf:
            return value * 1000.0 if int(value) in _SECONDS else float(value)
        if isinstance(value, str):
            return _of_text(value, f"{place}: {name}")
        raise BadInputError(f"{place}: {name} is {value!r}, {_EXPECTED}")
    return None


def _of_text(text: str, what: str) -> float:
    try:
        # Python 3.10 knows no Z.
        when = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError as error:
        raise BadInputError(f"{what} is {text!r}, {_EXPECTED}") from error
    return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp() * 1000.0
