# SPDX-License-Identifier: Apache-2.0
"""The content oracle: proof that every row a model would read was written from its own tokens."""

from vllm_ascend_evaluation.oracle.errors import ContentViolation, IntegrityError
from vllm_ascend_evaluation.oracle.integrity import check_drained, check_integrity
from vllm_ascend_evaluation.oracle.options import OracleOptions
from vllm_ascend_evaluation.oracle.worker import ShadowWorker

__all__ = [
    "ContentViolation",
    "IntegrityError",
    "OracleOptions",
    "ShadowWorker",
    "check_drained",
    "check_integrity",
]
