# SPDX-License-Identifier: Apache-2.0
"""A tier below the device's KV cache: host memory of the node, or a Mooncake Store.

One object per unit of a prompt (the rows that its tokens left in every group that keeps all of
them) and one per kept boundary (its tail). So a hit ends at any kept boundary, whatever the block
size. ``docs/tier.md`` is for operators.

==================  ============================================================
module              what it does
==================  ============================================================
``settings``        reads ``kv_connector_extra_config``
``layout``          units, rows and bytes of an object, and the digest in its name
``tail_choice``     which boundaries have their tail stored (arithmetic)
``look_up``         the longest hit in a store, in few calls
``store_thread``    calls a store that is on another machine, beside the steps
``remote_look_up``  look-ups there, answered in a later step if they take long
``shared_reset``    resets there
``orders``          what a step's workers are told to move
``objects``         the header of an object, and its checksum
``host_memory``     backend ``host``: pages of shared memory, least recently used out
``disk/``           files below that memory, which outlive the engine
``mooncake``        backend ``mooncake``
``progress``        what the scheduler's half knows of one request
``scheduler_side``  the scheduler's half
``row_views``       the KV cache as rows, gathered and scattered
``staging``         bounded buffers between device and store
``worker_side``     the workers' half
``telling``         what a data-parallel rank tells the front end of it
``kv_events``       what routers are told of it
``statistics``      what is counted
``prometheus``      the metrics
``connector``       vLLM's interface in front of the two halves
==================  ============================================================
"""
