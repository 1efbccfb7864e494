# SPDX-License-Identifier: Apache-2.0
"""For routers: what KV events tell of an engine's prefix cache (docs/kv-events.md)."""
