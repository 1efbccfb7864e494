# SPDX-License-Identifier: Apache-2.0
"""The block pool: free queues by rank, names of blocks, entries of granules.

What a block holds and in which order memory is given up; not why something is kept.
"""
