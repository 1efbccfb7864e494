# SPDX-License-Identifier: Apache-2.0
"""Memory for requests: what one holds at most, what its next step needs, and how it gets it."""
