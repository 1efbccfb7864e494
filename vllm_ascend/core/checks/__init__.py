# SPDX-License-Identifier: Apache-2.0
"""Settings that cannot work, refused before anything is served.

Checks of single values are in ``prefix_cache_config``.
"""
