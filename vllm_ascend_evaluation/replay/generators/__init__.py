# SPDX-License-Identifier: Apache-2.0
"""Models of real traffic: sessions whose lengths and times follow published statistics.

Nothing here is copied from a trace. Each model draws from the distributions in its constants, and
says where they come from. Not here: fixed shapes, and the names of workloads (``workloads``).
"""
