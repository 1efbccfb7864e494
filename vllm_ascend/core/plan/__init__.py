# SPDX-License-Identifier: Apache-2.0
"""The plan of one engine's prefix cache, and the facts that it is made from."""
