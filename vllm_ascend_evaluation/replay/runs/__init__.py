# SPDX-License-Identifier: Apache-2.0
"""One run: a workload on a variant, in a process that it has to itself.

Here: the job, the processes that run it, the engine that drives the scheduler, what it counts.
Not here: what to run (``variants``, ``workloads``), the scheduler itself, records (``results``).
"""
