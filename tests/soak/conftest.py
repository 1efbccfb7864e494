# SPDX-License-Identifier: Apache-2.0
"""Steps of the soak's own tests are counted like all others."""

from __future__ import annotations

import logging

# A line per reset and per built scheduler would be most of the run time.
logging.getLogger("vllm").setLevel(logging.CRITICAL)
