# SPDX-License-Identifier: Apache-2.0
"""Where a hit may end, and with which blocks: prefixes, tails, sources of copies."""
