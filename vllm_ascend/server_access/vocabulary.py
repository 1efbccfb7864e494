# SPDX-License-Identifier: Apache-2.0
"""Which token ids a server of any model takes."""

# The first ids are most often padding, begin and end.
FIRST_ID = 4
MIN_VOCABULARY = 100
