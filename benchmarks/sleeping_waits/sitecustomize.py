# SPDX-License-Identifier: Apache-2.0
"""On PYTHONPATH it lets vLLM's processes sleep where they would wait for each other busily.

For a second they wait so, in ``os.sched_yield``. On a machine with fewer cores than processes that
takes time from the front end and from the client.
"""

import os
import time

os.sched_yield = lambda: time.sleep(0.0002)
