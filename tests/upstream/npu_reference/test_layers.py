# SPDX-License-Identifier: Apache-2.0
"""The reference operators without pages, against Hugging Face's modules or plain formulas."""

from __future__ import annotations

import pytest
import torch
from transformers import DeepseekV4Config
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as hugging_face

from tests.upstream.npu_reference import (
    experts,
    hyper_connections,
    norms,
    projections,
    quantization,
    quantized_experts,
    rotary,
    routing,
    scatter,
)

HIDDEN, STREAMS, EXPERTS, TOP = 24, 3, 8, 2


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.fixture
def config() -> DeepseekV4Config:
    return DeepseekV4Config(
        hidden_size=HIDDEN,
        hc_mult=STREAMS,
        n_routed_experts=EXPERTS,
        num_experts_per_tok=TOP,
        moe_intermediate_size=16,
        vocab_size=50,
        num_hidden_layers=2,
        compress_ratios=[0, 0],
        swiglu_limit=1e9,
    )


def randomly(module: torch.nn.Module) -> torch.nn.Module:
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.normal_(0, 0.5)
    return module


@pytest.mark.parametrize("num_tokens", [1, 4, 129])
def test_hyper_connections(config, num_tokens):
    module = randomly(hugging_face.DeepseekV4HyperConnection(config))
    streams = torch.randn(num_tokens, STREAMS, HIDDEN)
    back, mixing, into = module(streams[None])
    got = hyper_connections.npu_hc_pre(
        streams, module.fn, module.scale, module.base, STREAMS, 20, 1e-6, config.hc_eps
    )
    for ours, theirs in zip(got, (into[0], back[0], mixing[0]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    output = torch.randn(num_tokens, HIDDEN)
    after = back[0][..., None] * output[:, None] + mixing[0].transpose(1, 2) @ streams
    got = hyper_connections.npu_hc_post(output[None], streams[None], back, mixing)
    torch.testing.assert_close(got[0], after, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("by_token", [False, True])
@pytest.mark.parametrize("num_tokens", [0, 1, 129])
def test_routing(config, by_token, num_tokens):
    hidden = torch.randn(1, num_tokens, HIDDEN)
    tokens = torch.randint(0, 50, (num_tokens,))
    if by_token:
        router = randomly(hugging_face.DeepseekV4HashRouter(config))
        router.tid2eid.copy_(torch.rand(50, EXPERTS).argsort(1)[:, :TOP])
        logits, weights, chosen = router(hidden, tokens[None])
        asked = {"input_ids": tokens, "tid2eid": router.tid2eid.int()}
    else:
        router = randomly(hugging_face.DeepseekV4TopKRouter(config))
        logits, weights, chosen = router(hidden)
        asked = {"bias": router.e_score_correction_bias}
    got, ids, _ = routing.moe_gating_top_k_hash(
        logits, TOP, **asked, routed_scaling_factor=config.routed_scaling_factor, norm_type=2
    )
    spread = torch.zeros(num_tokens, EXPERTS)
    torch.testing.assert_close(
        spread.scatter(1, ids.long(), got), spread.scatter(1, chosen, weights)
    )


@pytest.mark.parametrize("num_tokens", [1, 4, 127, 128, 129])
@pytest.mark.parametrize("only_one", [False, True])
def test_the_chain_of_experts(config, num_tokens, only_one):
    module = randomly(hugging_face.DeepseekV4Experts(config))
    x = torch.randn(num_tokens, HIDDEN)
    chosen = torch.rand(num_tokens, EXPERTS).argsort(1)[:, :TOP]
    if only_one:  # the others have no rows
        chosen = torch.tensor([[5, 3]]).expand(num_tokens, TOP)
    weights = torch.rand(num_tokens, TOP)
    rows, places, counts, _ = experts.npu_moe_init_routing_custom(
        x,
        chosen.int(),
        active_num=num_tokens * TOP,
        expert_num=EXPERTS,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        quant_mode=-1,
        active_expert_range=[0, EXPERTS],
    )
    assert int(counts.sum()) == len(rows) == num_tokens * TOP
    how = {"split_item": 2, "group_type": 0, "group_list_type": 1, "group_list": counts}
    (gates,) = experts.npu_grouped_matmul([rows], [module.gate_up_proj.transpose(1, 2)], **how)
    inner = experts.npu_swiglu(gates)
    (outer,) = experts.npu_grouped_matmul([inner], [module.down_proj.transpose(1, 2)], **how)
    got = experts.npu_moe_token_unpermute(outer, places, weights)
    torch.testing.assert_close(got, module(x, chosen, weights), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_tokens", [1, 128, 129])
@pytest.mark.parametrize("limit", [0.5, 1e9])
def test_the_chain_of_int8_experts(config, num_tokens, limit):
    """What int8 is worth is given to Hugging Face's experts; between them stands one more int8."""
    config.swiglu_limit = limit
    module = randomly(hugging_face.DeepseekV4Experts(config))
    (up, up_scale), (down, down_scale) = (
        quantization.npu_dynamic_quant(weights)
        for weights in (module.gate_up_proj, module.down_proj)
    )
    module.gate_up_proj.copy_(up * up_scale[..., None])
    module.down_proj.copy_(down * down_scale[..., None])
    chosen = torch.arange(num_tokens) % 5  # the others have no rows
    x, x_scale = quantization.npu_dynamic_quant(torch.randn(num_tokens, HIDDEN))
    order = chosen.argsort(stable=True)
    counts = torch.bincount(chosen, minlength=EXPERTS)
    inner, inner_scale, _ = quantized_experts.grouped_matmul_swiglu_quant_weight_nz(
        x[order],
        up.transpose(1, 2),
        up_scale,
        x_scale[order],
        counts.cumsum(0),
        swiglu_limit=limit,
    )
    (got,) = experts.npu_grouped_matmul(
        [inner],
        [down.transpose(1, 2)],
        scale=[down_scale],
        per_token_scale=[inner_scale],
        group_list=counts,
        split_item=2,
        group_type=0,
        group_list_type=1,
        output_dtype=torch.float32,
    )
    worth = x * x_scale[:, None]
    expected = module(worth, chosen[:, None], torch.ones(num_tokens, 1))[order]
    # Half a step in every one of 16 columns, at most.
    error = 0.51 * inner_scale[:, None] * module.down_proj[chosen[order]].abs().sum(-1)
    assert bool(((got - expected).abs() <= error + 1e-5).all())


@pytest.mark.parametrize("limit", [0.0, 0.5])
def test_int8_experts_that_all_tokens_have(limit):
    x, x_scale = quantization.npu_dynamic_quant(torch.randn(9, HIDDEN))
    weight, scale = quantization.npu_dynamic_quant(torch.randn(32, HIDDEN))
    sums = quantization.npu_quant_matmul(x, weight.T, scale, output_dtype=torch.int32)
    assert sums.dtype == torch.int32
    asked = {"weight_scale": scale, "activation_scale": x_scale, "clamp_limit": limit}
    got, got_scale = quantized_experts.npu_dequant_swiglu_quant(
        sums, **asked, quant_mode=1, swiglu_mode=1
    )
    gate, up = ((x * x_scale[:, None]) @ (weight * scale[:, None]).T).chunk(2, -1)
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    expected = gate * gate.sigmoid() * up
    error = 0.51 * got_scale[:, None] + 1e-5
    assert bool(((got * got_scale[:, None] - expected).abs() <= error).all())
    with pytest.raises(ValueError, match="not written"):
        quantized_experts.npu_dequant_swiglu_quant(sums, **asked)


def test_rotary_turns_a_slice(config):
    x = torch.randn(9, 4, 32)
    angles = torch.randn(9, 8)
    cos, sin = angles.cos(), angles.sin()
    expected = hugging_face.apply_rotary_pos_emb(x[None], cos[None], sin[None], unsqueeze_dim=2)[0]
    wide = [part.repeat_interleave(2, -1)[:, None, None] for part in (cos, sin)]
    rotary.inplace_partial_rotary_mul(x[:, None], *wide, "interleave", [16, 32])
    torch.testing.assert_close(x, expected)
    # And back.
    rotary.inplace_partial_rotary_mul(x[:, None], wide[0], -wide[1], "interleave", [16, 32])
    back = hugging_face.apply_rotary_pos_emb(expected[None], cos[None], -sin[None], unsqueeze_dim=2)
    torch.testing.assert_close(x, back[0])


@pytest.mark.parametrize("shape", [(1, 8), (129, 3, 8)])
def test_norms(shape):
    x, weight = torch.randn(shape), torch.randn(8)
    expected = torch.nn.functional.rms_norm(x, (8,), weight, 1e-6)
    torch.testing.assert_close(norms.npu_rms_norm(x, weight, 1e-6)[0], expected)
    y, _, total = norms.npu_add_rms_norm_bias(x, x, weight, torch.ones(8), 1e-6)
    torch.testing.assert_close(total, 2 * x)
    torch.testing.assert_close(
        y, torch.nn.functional.rms_norm(2 * x, (8,), weight, 1e-6) + 1, rtol=1e-5, atol=1e-5
    )
    quantised, scale = norms.npu_rms_norm_dynamic_quant(x, weight, epsilon=1e-6)
    torch.testing.assert_close(
        quantised * scale[..., None], expected, rtol=0, atol=float(scale.max()) * 0.51
    )


def test_quantised_products():
    x, weight = torch.randn(130, 48), torch.randn(48, 20)
    x[7] = 0
    steps, scale = quantization.npu_dynamic_quant(x)
    assert steps.dtype == torch.int8 and int(steps.abs().max()) == 127
    torch.testing.assert_close(steps * scale[:, None], x, rtol=0, atol=float(scale.max()) * 0.51)
    columns, column_scale = quantization.npu_dynamic_quant(weight.T)
    got = quantization.npu_quant_matmul(
        steps, columns.T, column_scale, pertoken_scale=scale, output_dtype=torch.float32
    )
    expected = (steps * scale[:, None]) @ (columns * column_scale[:, None]).T
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_groups_of_heads_are_projected_apart():
    x, weight = torch.randn(5, 2, 6), torch.randn(2, 6, 4)
    got = projections.npu_transpose_batchmatmul(
        x, weight, perm_x1=(1, 0, 2), perm_x2=(0, 1, 2), perm_y=(1, 0, 2)
    )
    torch.testing.assert_close(got, torch.einsum("tgd,gdr->tgr", x, weight))


def test_scatter_leaves_out_what_lies_outside_and_keeps_the_last():
    pages = torch.zeros(5, 9, 1, 2)[:, :8]  # padded
    slots = torch.tensor([-1, 17, 39, 17, 0])
    indices = torch.stack([slots // 8, slots % 8], -1).int()
    update = torch.arange(1.0, 13.0).view(6, 1, 2)  # a row more than indices
    scatter.npu_scatter_nd_update_v2(pages, indices, update)
    expected = torch.zeros(5, 8, 1, 2)
    expected[4, 7], expected[2, 1], expected[0, 0] = update[2], update[3], update[4]
    torch.testing.assert_close(pages, expected)
    scatter.npu_scatter_nd_update_v2(pages, indices[:0], update)
    torch.testing.assert_close(pages, expected)
    with pytest.raises(ValueError, match="bfloat16"):
        scatter.npu_scatter_nd_update_v2(pages, indices, update.bfloat16())
    with pytest.raises(ValueError, match="4 rows for 5"):
        scatter.npu_scatter_nd_update_v2(pages, indices, update[:4])
