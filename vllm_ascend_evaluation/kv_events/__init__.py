# SPDX-License-Identifier: Apache-2.0
"""The router's side of KV events: a reference index (docs/kv-events.md)."""
