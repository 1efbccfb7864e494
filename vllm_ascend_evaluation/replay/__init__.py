# SPDX-License-Identifier: Apache-2.0
"""Traffic through the real scheduler or a real server, and what its prefix cache hit.

Here: the commands, what they share, workloads, variants, and the scheduler that tests drive, too.
In rooms: ``readers`` and ``generators`` (requests), ``runs`` (one run in a process of its own),
``http`` (a server), ``curves`` (many runs, one picture), ``report`` (results to read).
"""
