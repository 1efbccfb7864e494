# SPDX-License-Identifier: Apache-2.0
"""What operators are told: statistics, and the lines at the start."""
