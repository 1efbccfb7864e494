# SPDX-License-Identifier: Apache-2.0
"""The error of input that cannot be used; needs no library."""


class BadInputError(ValueError):
    """A file or an option cannot be used; the message names it, the line and what is wrong."""
