# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout (see forks.py): drafts behind the first write into their own blocks.

vllm-ascend's real proposer computes the slots on CPU tensors, its real metadata builders take them.
"""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from vllm.config import CUDAGraphMode

import vllm_ascend.patch.platform
import vllm_ascend.patch.worker  # noqa: F401 - installs the patches
from tests.release_marks import is_native
from vllm_ascend.attention import dsa_v1
from vllm_ascend.attention.context_parallel import dsa_cp
from vllm_ascend.attention.utils import AscendCommonAttentionMetadata
from vllm_ascend.spec_decode.llm_base_proposer import AscendSpecDecodeBaseProposer

MAX_MODEL_LEN = 4096
PAD = -1
_DRAFTING = "vllm_ascend.attention.dsa_v1:AscendDSAMetadataBuilder.build_for_drafting"
BUILDERS = {
    "dsa_v1": (dsa_v1, dsa_v1.AscendDSAMetadataBuilder),
    "dsa_cp": (dsa_cp, dsa_cp.AscendDSACPMetadataBuilder),
}


def bare_builder(kind: str, block_size: int, monkeypatch):
    """A builder that keeps the slots it is given: what follows needs an NPU."""
    module, builder_class = BUILDERS[kind]
    monkeypatch.setattr(module, "get_cos_and_sin_dsa", lambda *args, **kwargs: (None, None))
    monkeypatch.setattr(module, "split_decodes_and_prefills", lambda *a, **k: (0, 0, 0, 0))
    builder = object.__new__(builder_class)
    builder.kv_cache_spec = SimpleNamespace(block_size=block_size)
    if is_native(_DRAFTING):
        builder.block_size = block_size  # as build() leaves it, which comes first in a step
    builder.compressor_ratio = 0
    builder.decode_threshold = 1
    builder.metadata_cls = MagicMock()
    builder.model_config = MagicMock()
    builder.spec_slot_mapping = [torch.full((64, 2), PAD, dtype=torch.int32) for _ in range(4)]
    builder.build_req_metadata_for_drafting = MagicMock()
    return builder


def proposer(num_steps: int, block_size: int) -> AscendSpecDecodeBaseProposer:
    """Of the real class, with what one draft step reads and no model."""
    made = object.__new__(AscendSpecDecodeBaseProposer)
    made.method = "mtp"
    made.use_compress = True
    made.uses_mrope = made.has_gdn = False
    made.runner = None
    made.block_size = block_size  # newer releases look slots up in it, older ones in 128
    made.max_model_len = MAX_MODEL_LEN
    made.pcp_size = made.dcp_size = 1
    made.kernel_block_size = 8
    made.arange = torch.arange(65, dtype=torch.int32)
    made.token_arange_np = np.arange(65)
    made.vllm_config = MagicMock()

    def group(dtype):
        return [torch.zeros(64, dtype=dtype) for _ in range(num_steps + 1)]

    made.slot_mapping_group, made.seq_lens_group = group(torch.int32), group(torch.int32)
    made.query_start_loc_group = group(torch.int32)
    return made


def common_metadata(table: torch.Tensor, positions: torch.Tensor) -> AscendCommonAttentionMetadata:
    batch = len(positions)
    lengths = positions.int() + 1
    made = object.__new__(AscendCommonAttentionMetadata)
    for name, value in {
        "num_reqs": batch,
        "block_table_tensor": table,
        "seq_lens": lengths.clone(),
        "seq_lens_cpu": lengths.clone(),
        "_seq_lens_cpu": lengths.clone(),
        "num_computed_tokens_cpu": positions.int().clone(),
        "positions": positions.clone(),
        "slot_mapping": torch.zeros(64, dtype=torch.int32),
        "query_start_loc": torch.arange(batch + 1, dtype=torch.int32),
        "query_start_loc_cpu": torch.arange(batch + 1, dtype=torch.int32),
        "num_input_tokens": batch,
        "num_actual_tokens": batch,
        "attn_state": None,
    }.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("num_drafts", (2, 3))
@pytest.mark.parametrize("block_size", (32, 64, 128))
@pytest.mark.parametrize("kind", BUILDERS)
def test_no_slot_leaves_its_requests_blocks(kind, block_size, num_drafts, monkeypatch):
    generator = torch.Generator().manual_seed(block_size + num_drafts)
    batch, width = 16, MAX_MODEL_LEN // block_size
    table = 1 + torch.randperm(batch * width, generator=generator).int().view(batch, width)
    positions = torch.randint(0, MAX_MODEL_LEN - 1, (batch,), generator=generator)
    positions[0] = MAX_MODEL_LEN - 2  # its second draft is behind the longest length
    builder = bare_builder(kind, block_size, monkeypatch)
    attn_group = SimpleNamespace(get_metadata_builder=lambda: builder)
    made = proposer(num_drafts, block_size)
    made.draft_attn_groups = [SimpleNamespace(kv_cache_spec=builder.kv_cache_spec)]
    metadata, current = common_metadata(table, positions), positions.clone()
    for step in range(1, num_drafts):
        metadata, _ = made.attn_update_stack_num_spec_norm(
            step, None, metadata, batch, batch, current, CUDAGraphMode.NONE, attn_group=attn_group
        )
        slots = metadata.slot_mapping
        packed = builder.spec_slot_mapping[step - 1]
        for request in range(batch):
            place = int(positions[request]) + step
            if place >= MAX_MODEL_LEN:
                assert slots[request] == PAD
                continue
            block = int(table[request, place // block_size])
            assert int(slots[request]) == block * block_size + place % block_size
            assert packed[request].tolist() == [block, place % block_size]
        assert set(slots[batch:].tolist()) == {PAD}
