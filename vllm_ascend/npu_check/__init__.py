# SPDX-License-Identifier: Apache-2.0
"""What only an NPU can show, to be run on a node that has one."""
