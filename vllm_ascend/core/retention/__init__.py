# SPDX-License-Identifier: Apache-2.0
"""What a request leaves in the cache, why, and for how long: boundaries, tails, ranks, pins."""
