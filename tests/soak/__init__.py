# SPDX-License-Identifier: Apache-2.0
"""The soak: random layouts, pools, switches and traffic through the content oracle, for hours."""
