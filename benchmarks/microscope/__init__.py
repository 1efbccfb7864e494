# SPDX-License-Identifier: Apache-2.0
"""What single calls cost the scheduler's thread, with pytest-benchmark: ours beside stock."""
