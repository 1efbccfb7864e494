# SPDX-License-Identifier: Apache-2.0
"""What commands share: their help pages, their errors, their exit codes, interrupts."""
