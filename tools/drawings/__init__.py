# SPDX-License-Identifier: Apache-2.0
"""The drawings of docs/how-it-works.md, as code."""
