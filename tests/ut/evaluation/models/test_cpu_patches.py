# SPDX-License-Identifier: Apache-2.0
"""vLLM's stand-ins for the rejection kernels are called with what they take."""

import pytest
from vllm.utils import cpu_triton_utils

import vllm_ascend_evaluation.models.patches  # noqa: F401 - installs the patches
from tests.release_marks import where_patched

_FuncWrapper = getattr(cpu_triton_utils, "_FuncWrapper", None)  # later releases have none
pytestmark = where_patched("vllm.utils.cpu_triton_utils:_FuncWrapper.__getitem__")


def test_arguments_of_synthetic_acceptance_are_left_out():
    """They are the last by place, and one by name."""

    def greedy(drafts, targets):
        return drafts, targets

    def random(drafts, targets, without_probabilities):
        return drafts, targets, without_probabilities

    extra = ("uniform", "rates")
    assert _FuncWrapper(greedy)[(1,)]("d", "t", *extra, SYNTHETIC_MODE=False) == ("d", "t")
    called = _FuncWrapper(random)[(1,)]
    assert called("d", "t", "rates", without_probabilities=True, SYNTHETIC_MODE=False) == (
        *("d", "t"),
        True,
    )


def test_synthetic_acceptance_is_refused():
    with pytest.raises(NotImplementedError, match="synthetic"):
        _FuncWrapper(lambda drafts: drafts)[(1,)]("d", "rates", SYNTHETIC_MODE=True)


def test_other_kernels_are_called_as_they_are():
    assert _FuncWrapper(lambda *args, **options: (args, options))[(4,)](1, 2, x=3) == (
        (1, 2),
        {"x": 3},
    )


def test_a_mode_without_arguments_of_its_own_is_left_out_while_it_is_off():
    def recovered(drafts, size, block_size):
        return drafts, size, block_size

    called = _FuncWrapper(recovered)[(1,)]
    assert called("d", 8, block_size=4, USE_FP64_GUMBEL=False) == ("d", 8, 4)
    with pytest.raises(NotImplementedError, match="double precision"):
        called("d", 8, block_size=4, USE_FP64_GUMBEL=True)
