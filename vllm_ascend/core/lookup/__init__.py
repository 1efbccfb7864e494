# SPDX-License-Identifier: Apache-2.0
"""Where a hit may end, and with which blocks: prefixes, tails, sources of copies.

Look-ups change nothing. What is entered, and for how long, is decided in ``retention``.
"""
