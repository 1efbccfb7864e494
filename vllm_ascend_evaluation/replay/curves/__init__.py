# SPDX-License-Identifier: Apache-2.0
"""Commands that compare many runs: hit rate over memory, over prefixes, over settings.

Here: which runs they make, their records, and the textbook policies drawn beside them.
Not here: making the runs (``runs``), and drawing and printing (``report``).
"""
