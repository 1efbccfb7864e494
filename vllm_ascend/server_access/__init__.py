# SPDX-License-Identifier: Apache-2.0
"""How commands reach a running OpenAI-compatible server, and what it says of itself."""
