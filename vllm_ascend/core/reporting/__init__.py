# SPDX-License-Identifier: Apache-2.0
"""The statistics that operators get."""
