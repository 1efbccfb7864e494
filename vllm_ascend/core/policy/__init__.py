# SPDX-License-Identifier: Apache-2.0
"""Decides what to keep and what to give up first: pure functions over ints.

This is the ground floor of ``core``: it imports no other room.
"""
