# SPDX-License-Identifier: Apache-2.0
"""The reference compressor against Hugging Face's modules, cut into steps at every edge."""

from __future__ import annotations

import pytest
import torch
from transformers import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
    DeepseekV4CSACompressor,
    DeepseekV4HCACompressor,
)

from tests.upstream.npu_reference.compressor import compressor

HIDDEN, WIDTH, ROPE = 48, 32, 16
LENGTHS = (1, 3, 4, 5, 127, 128, 129, 255, 256, 257, 511, 512, 513)


def hugging_face(ratio: int) -> torch.nn.Module:
    """Return a compressor with random weights."""
    config = DeepseekV4Config(
        hidden_size=HIDDEN,
        head_dim=WIDTH,
        qk_rope_head_dim=ROPE,
        q_lora_rank=24,
        index_n_heads=8,
        index_head_dim=16,
        compress_ratios=[4, 128],
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    module = (DeepseekV4CSACompressor if ratio == 4 else DeepseekV4HCACompressor)(config)
    generator = torch.Generator().manual_seed(ratio)
    for parameter in module.parameters():
        parameter.data.normal_(0, 0.3, generator=generator)
    module.config = config
    return module


class Paged:
    """A compressor's state in pages: requests with blocks in any order, block 0 left out."""

    def __init__(self, module: torch.nn.Module, ratio: int, rows: int, num_requests: int) -> None:
        self.module, self.ratio, self.coff = module, ratio, 2 if ratio == 4 else 1
        num_blocks = -(-600 // rows)
        ids = torch.randperm(num_blocks * num_requests) + 1
        self.table = ids.view(num_requests, num_blocks).int()
        padded = torch.full((len(ids) + 1, rows + 3, 2 * self.coff * WIDTH), float("nan"))
        self.cache = padded[:, :rows]  # pages are padded: their stride is no product of the shape

    def step(self, x: list[torch.Tensor], starts: list[int]) -> list[torch.Tensor]:
        """Give the requests tokens, and return the rows of the windows that each closed."""
        bounds = torch.tensor([0, *(len(tokens) for tokens in x)]).cumsum(0)
        closed = [
            torch.arange(start // self.ratio, (start + len(tokens)) // self.ratio) * self.ratio
            for start, tokens in zip(starts, x, strict=True)
        ]
        num_tokens = int(bounds[-1])
        size = min(num_tokens, num_tokens // self.ratio + len(x))
        positions = torch.cat([*closed, torch.zeros(size, dtype=torch.long)])[:size]
        cos, sin = self.module.rotary_emb(x[0], position_ids=positions[None], layer_type="compress")
        rows = compressor(
            torch.cat(x),
            self.module.kv_proj.weight,
            self.module.gate_proj.weight,
            self.cache,
            self.module.position_bias,
            self.module.kv_norm.weight,
            sin[0].repeat_interleave(2, -1),
            cos[0].repeat_interleave(2, -1),
            self.table[: len(x)],
            bounds.int(),
            None,
            torch.tensor(starts, dtype=torch.int32),
            ROPE,
            self.ratio,
            self.coff,
            1e-6,
            2,
            1,
        )
        count = sum(map(len, closed))
        assert torch.isnan(rows[count:]).all()
        return list(rows[:count].split([len(windows) for windows in closed]))


def whole(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return all rows of a request, computed at once."""
    positions = torch.arange(len(x))[None]
    latent = torch.zeros(1, len(x), 24)
    return module(x[None], latent, positions, None, 0)[0][0, 0]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.mark.parametrize("ratio", [4, 128])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_request_in_one_step(ratio, length):
    module = hugging_face(ratio)
    x = torch.randn(length, HIDDEN)
    (rows,) = Paged(module, ratio, 8 if ratio == 4 else 32, 1).step([x], [0])
    torch.testing.assert_close(rows, whole(module, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("ratio", "rows_per_block"), [(4, 2), (4, 8), (128, 8), (128, 32)])
@pytest.mark.parametrize("cut", [1, 3, 4, 5, 127, 128, 129, 130, 256, 511, 512])
def test_a_request_cut_in_two(ratio, rows_per_block, cut):
    module = hugging_face(ratio)
    x = torch.randn(513, HIDDEN)
    paged = Paged(module, ratio, rows_per_block, 1)
    rows = [paged.step([x[:cut]], [0])[0], paged.step([x[cut:]], [cut])[0]]
    torch.testing.assert_close(torch.cat(rows), whole(module, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ratio", [4, 128])
def test_requests_do_not_mix(ratio):
    module = hugging_face(ratio)
    x = [torch.randn(length, HIDDEN) for length in (300, 129, 5, 513)]
    paged = Paged(module, ratio, 8, len(x))
    got: list[list[torch.Tensor]] = [[] for _ in x]
    places = [0] * len(x)
    for size in (1, 4, 123, 1, 2, 300, 200):
        # Some requests have nothing to do in a step: rows of the table without tokens.
        parts = [tokens[place : place + size] for tokens, place in zip(x, places, strict=True)]
        for index, rows in enumerate(paged.step(parts, places)):
            got[index].append(rows)
        places = [place + len(part) for place, part in zip(places, parts, strict=True)]
    for tokens, rows in zip(x, got, strict=True):
        torch.testing.assert_close(torch.cat(rows), whole(module, tokens), rtol=1e-5, atol=1e-5)


def test_tokens_one_by_one():
    module = hugging_face(4)
    x = torch.randn(13, HIDDEN)
    paged = Paged(module, 4, 2, 1)
    rows = [paged.step([x[place : place + 1]], [place])[0] for place in range(len(x))]
    torch.testing.assert_close(torch.cat(rows), whole(module, x), rtol=1e-5, atol=1e-5)


def test_state_that_nobody_reads_again_may_lie_in_block_0():
    """Rows of block 0 are not written; those that the next windows need are elsewhere."""
    module = hugging_face(4)
    x = torch.randn(64, HIDDEN)
    paged = Paged(module, 4, 8, 1)
    paged.table[0, :3] = 0
    rows = [paged.step([x[:30]], [0])[0], paged.step([x[30:]], [30])[0]]
    assert torch.isnan(paged.cache[0]).all()
    torch.testing.assert_close(torch.cat(rows), whole(module, x), rtol=1e-5, atol=1e-5)


def test_state_that_was_never_written_makes_what_comes_out_no_number():
    module = hugging_face(4)
    (rows,) = Paged(module, 4, 8, 1).step([torch.randn(6, HIDDEN)], [32])
    assert torch.isnan(rows[0]).all()
