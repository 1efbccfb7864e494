# SPDX-License-Identifier: Apache-2.0
"""What the prefix cache did and holds, for those who run it: Prometheus, and a line in the log."""
