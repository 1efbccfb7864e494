# SPDX-License-Identifier: Apache-2.0
"""Tools of the documentation: generators of pages and drawings."""
