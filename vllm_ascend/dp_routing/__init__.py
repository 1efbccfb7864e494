# SPDX-License-Identifier: Apache-2.0
"""Data-parallel ranks chosen by what they have cached.

Each rank tells the front end which prefixes it has cached. The front end hashes a prompt once, asks
one index for the hit on every rank, and sends the request where it costs least. For operators it is
explained in docs/data-parallel.md; :mod:`vllm_ascend.patch.engine.patch_core_client` calls it.
"""
