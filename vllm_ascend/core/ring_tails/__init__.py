# SPDX-License-Identifier: Apache-2.0
"""A prototype: compressor state in a ring per request, with snapshots beside the windows' blocks.

No layout that serves asks for it. See ``docs/ring-tails.md``.
"""
