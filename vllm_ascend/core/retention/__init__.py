# SPDX-License-Identifier: Apache-2.0
"""Keeps what a request leaves in the cache: tails, sparse state, the ledger of its entries.

The arithmetic behind it is in ``policy``.
"""
