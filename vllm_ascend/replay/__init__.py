# SPDX-License-Identifier: Apache-2.0
"""Traffic through the real scheduler or a real server: reader, engine, report."""
