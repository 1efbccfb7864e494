# SPDX-License-Identifier: Apache-2.0
"""The regressions before a roll-out: measured on a running server, judged against a baseline."""
