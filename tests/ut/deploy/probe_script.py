# SPDX-License-Identifier: Apache-2.0
"""``deploy/base/probe.py``, which is no part of any package, as a module."""

from __future__ import annotations

import importlib.util

from tests.ut.deploy.manifests import DEPLOY

_spec = importlib.util.spec_from_file_location("probe", DEPLOY / "base" / "probe.py")
assert _spec is not None and _spec.loader is not None
probe = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(probe)
