# SPDX-License-Identifier: Apache-2.0
"""In which order kept blocks are given up: rules, and what the learning one learns from.

Everything works on names, times and counts; nothing here knows a block of the pool. Times are
counts of blocks used (freed with content), so no clock is read and replays repeat.
"""
