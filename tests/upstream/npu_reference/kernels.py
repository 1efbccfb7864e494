# SPDX-License-Identifier: Apache-2.0
"""Triton kernels, each as one function over all that a launch covers.

Names of arguments are of no importance: launches give most of them by their place.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import torch


def triton_rms_kernel(
    hidden_state: torch.Tensor,
    stride: int,
    norm_output: torch.Tensor,
    variance_epsilon: float,
    *sizes: int,
) -> None:
    """Divide rows by their root mean square. Source: ``ops/triton/rms_norm.py``."""
    rows = hidden_state.float()
    norm = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + variance_epsilon)
    norm_output.copy_(norm)


def muls_add_kernel(
    x: torch.Tensor, y: torch.Tensor, output: torch.Tensor, scale: float, *sizes: int, **blocks: int
) -> None:
    """Write ``x * scale + y``. Source: ``ops/triton/muls_add.py``."""
    output.copy_(x.float() * scale + y.float())


def _compute_slot_mapping_kernel(
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    stride: int,
    block_size: int,
    slot_mapping: torch.Tensor,
    **constants: int,
) -> None:
    """Write where every token's row lies, and the padding behind them.

    Source: vLLM's ``v1/worker/block_table.py``. Behind a request's row of the table the kernel
    reads on in the next ones; what lies behind the last one nobody knows, and is padding here.
    vllm-ascend 0.23.0 asks for the slots of compressed groups like that, and uses none of them.

    Raises:
        ValueError: Contexts are shared between ranks.
    """
    if constants["TOTAL_CP_WORLD_SIZE"] != 1:
        raise ValueError("_compute_slot_mapping_kernel: only one rank is written")
    bounds = query_start_loc.tolist()
    padding = constants["PAD_ID"]
    for index, (first, end) in enumerate(itertools.pairwise(bounds)):
        if first >= num_tokens:
            break
        places = positions[first:end].long()
        entries = index * stride + places // block_size
        inside = entries < block_table.numel()
        blocks = block_table.flatten()[entries.clamp(max=block_table.numel() - 1)].long()
        slots = blocks * block_size + places % block_size
        slot_mapping[first:end] = torch.where(inside, slots, padding)
    slot_mapping[num_tokens:max_num_tokens] = padding


def _compute_slot_mapping_fused_groups(
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table_addresses: torch.Tensor,
    slot_mapping_addresses: torch.Tensor,
    strides: torch.Tensor,
    block_sizes: torch.Tensor,
    is_circular: torch.Tensor | None,
    **constants: Any,
) -> None:
    """Write where every token's row lies in the tables of several groups, and the padding.

    Source: ``ops/triton/compute_slot_mapping.py``. Behind a row of the table is block 0.

    Args:
        block_table_addresses: ``[groups]``: where tables of int32 begin.
        slot_mapping_addresses: ``[groups]``: where ``[max_num_tokens]`` of int32 begin.
        strides: ``[groups]``: blocks of a row of the table.
        block_sizes: ``[groups]``: tokens of a block.

    Raises:
        ValueError: A group keeps one block for a request.
    """
    if is_circular is not None and bool(is_circular.any()):
        raise ValueError("_compute_slot_mapping_fused_groups: no circular group is written")
    groups = zip(
        *(
            t.tolist()
            for t in (block_table_addresses, slot_mapping_addresses, strides, block_sizes)
        ),
        strict=True,
    )
    for table, slots, stride, size in groups:
        slot_mapping = _int32_at(slots, max_num_tokens)
        for index, (first, end) in enumerate(itertools.pairwise(query_start_loc.tolist())):
            if first >= num_tokens:
                break
            row = _int32_at(table + 4 * index * stride, stride).long()
            places = positions[first:end].long()
            entries = places // size
            blocks = torch.where(entries < stride, row[entries.clamp(max=stride - 1)], 0)
            slot_mapping[first:end] = (blocks * size + places % size).int()
        slot_mapping[num_tokens:] = constants["PAD_ID"]


def _int32_at(address: int, count: int) -> torch.Tensor:
    """Return the memory at an address, as the kernel sees it."""
    return torch.frombuffer((ctypes.c_int32 * count).from_address(address), dtype=torch.int32)


def rejection_greedy_sample_spec_len_1_triton(
    output_token_ids: torch.Tensor,
    draft_token_ids: torch.Tensor,
    target_argmax: torch.Tensor,
    bonus_token_ids: torch.Tensor,
    num_requests: int,
    *synthetic: None,
    **blocks: int,
) -> None:
    """Accept one draft for each request if the target says the same; then a token more.

    Source: ``ops/triton/reject_sample.py``. Places of tokens that are not accepted keep what is
    in them.

    Args:
        synthetic: Of later releases, which can accept by given rates: nothing.
    """
    assert not any(rate is not None for rate in synthetic), "only real acceptance is written"
    output_token_ids[:, 0] = target_argmax
    accepted = draft_token_ids == target_argmax
    output_token_ids[accepted, 1] = bonus_token_ids.flatten()[accepted].to(output_token_ids.dtype)


def rejection_greedy_sample_triton(
    output_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    draft_token_ids: torch.Tensor,
    target_argmax: torch.Tensor,
    bonus_token_ids: torch.Tensor,
    is_greedy: torch.Tensor | None,
    num_requests: int,
    max_spec_len: int,
    *synthetic: None,
    **blocks: int,
) -> None:
    """Accept drafts up to the first that the target says otherwise.

    Source: ``ops/triton/reject_sample.py``; see the function above.

    Raises:
        ValueError: Some requests do not sample greedily.
    """
    assert not any(rate is not None for rate in synthetic), "only real acceptance is written"
    if is_greedy is not None and not bool(is_greedy.all()):
        raise ValueError("rejection_greedy_sample_triton: only greedy requests are written")
    first = 0
    for index, end in enumerate(cu_num_draft_tokens.tolist()):
        drafts, targets = draft_token_ids[first:end], target_argmax[first:end]
        same = (drafts == targets).long().cumprod(0)
        said = min(int(same.sum()) + 1, end - first)
        output_token_ids[index, :said] = targets[:said]
        if bool(same.all()):
            output_token_ids[index, end - first] = bonus_token_ids.flatten()[index]
        first = end


def prepare_inputs_padded_kernel(
    cu_num_draft_tokens: torch.Tensor,
    valid_sampled_tokens_count: torch.Tensor,
    query_start_loc: torch.Tensor,
    token_indices_to_sample: torch.Tensor,
    num_rejected_tokens: torch.Tensor,
    num_requests: int,
    **blocks: int,
) -> None:
    """Write where each request's last accepted token is, and how many behind it were rejected.

    Source: ``ops/triton/spec_decode/utils.py``.
    """
    drafts = cu_num_draft_tokens.diff(prepend=cu_num_draft_tokens.new_zeros(1))
    rejected = torch.where(drafts > 0, drafts + 1 - valid_sampled_tokens_count, 0)
    token_indices_to_sample.copy_(query_start_loc[1 : num_requests + 1] - 1 - rejected)
    num_rejected_tokens.copy_(rejected)


def copy_and_expand_dflash_and_dspark_inputs_kernel(
    *,
    next_token_ids_ptr: torch.Tensor,
    target_positions_ptr: torch.Tensor,
    context_slot_mapping_ptr: torch.Tensor,
    out_input_ids_ptr: torch.Tensor,
    out_context_positions_ptr: torch.Tensor,
    out_query_positions_ptr: torch.Tensor,
    out_context_slot_mapping_ptr: torch.Tensor,
    out_query_slot_mapping_ptr: torch.Tensor,
    out_token_indices_ptr: torch.Tensor,
    block_table_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    num_rejected_tokens_ptr: torch.Tensor | None,
    parallel_drafting_token_id: int,
    block_size: int,
    num_query_per_req: int,
    total_input_tokens: int,
    batch_size: int,
    **others: Any,
) -> None:
    """Write the context of a block of drafts, and its queries: the next token, and noise behind it.

    Source: ``ops/triton/spec_decode/utils.py``. Queries stand behind the last accepted token.

    Raises:
        ValueError: Contexts are shared between ranks, or the anchor is not sampled from.
    """
    if others["DCP_SIZE"] != 1 or not others["SAMPLE_FROM_ANCHOR"]:
        raise ValueError(f"copy_and_expand_dflash_and_dspark_inputs: not written for {others}")
    context = slice(total_input_tokens)
    out_context_positions_ptr[context] = target_positions_ptr[context].int()
    out_context_slot_mapping_ptr[context] = context_slot_mapping_ptr[context]
    for index in range(batch_size):
        rejected = 0 if num_rejected_tokens_ptr is None else int(num_rejected_tokens_ptr[index])
        first, end = query_start_loc_ptr[index : index + 2].tolist()
        settled = int(seq_lens_ptr[index]) - rejected
        has_context = end - rejected > first
        last = int(target_positions_ptr[end - rejected - 1 if has_context else first])
        queries = torch.arange(num_query_per_req)
        out = slice(index * num_query_per_req, (index + 1) * num_query_per_req)
        out_query_positions_ptr[out] = (queries + last + has_context).int()
        places = queries + settled
        blocks = block_table_ptr[index, places // block_size]
        out_query_slot_mapping_ptr[out] = (blocks * block_size + places % block_size).int()
        out_input_ids_ptr[out] = parallel_drafting_token_id
        out_input_ids_ptr[out.start] = next_token_ids_ptr[index]
        out_token_indices_ptr[out] = torch.arange(out.start, out.stop, dtype=torch.int32)


# By the names of the kernels.
KERNELS: dict[str, Callable[..., Any]] = {
    kernel.__name__: kernel
    for kernel in (
        _compute_slot_mapping_kernel,
        copy_and_expand_dflash_and_dspark_inputs_kernel,
        muls_add_kernel,
        prepare_inputs_padded_kernel,
        rejection_greedy_sample_spec_len_1_triton,
        rejection_greedy_sample_triton,
        triton_rms_kernel,
    )
} | {
    # For few tokens and for many.
    "_compute_slot_mapping_fused_groups_kernel": _compute_slot_mapping_fused_groups,
    "_compute_slot_mapping_fused_groups_adaptive_kernel": _compute_slot_mapping_fused_groups,
}
