# SPDX-License-Identifier: Apache-2.0
"""Several images in the granule that an answer, or a session's next chunk, completes."""

from __future__ import annotations

import pytest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.request import Request

from tests.e2e.core import layouts
from tests.e2e.core.engine import Engine
from vllm_ascend.core.pool import exact_hashes
from vllm_ascend.dry_run.layouts import dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions, block_hasher
from vllm_ascend_evaluation.oracle import ContentViolation, OracleOptions

BEST = {"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
LAYOUTS = {
    "gemma": (lambda: layouts.gemma_like(16, 40), 16, {}),
    "rows": (layouts.dsv4_rows_tiny, 16, {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1"}),
    "a3": (
        lambda: dsv4_flash_a3(128, compress_ratios=(0, 4, 128)),
        128,
        {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1"},
    ),
}


@pytest.fixture(params=LAYOUTS)
def engine_and_granule(request, make_engine) -> tuple[Engine, int]:
    layout, granule, environment = LAYOUTS[request.param]
    options = SchedulerOptions(
        num_blocks=4000,
        max_num_seqs=4,
        max_num_batched_tokens=8 * granule,
        max_model_len=40 * granule,
    )
    # One token id: the answers of two prompts are alike wherever their rows are not.
    oracle = OracleOptions(vocabulary=1)
    engine = make_engine(layout, options, oracle, environment | BEST)
    engine.scheduler.max_num_encoder_input_tokens = 10_000
    engine.scheduler.encoder_cache_manager = EncoderCacheManager(10_000)
    return engine, granule


def ask(engine: Engine, granule: int, name: str, images: list[str], answer: list[int]) -> Request:
    """Two granules of text, then images in a quarter of one; ``answer`` is the turn before."""
    tokens = [index % 40 for index in range(2 * granule)]
    features = []
    for image in images:
        place = PlaceholderRange(offset=len(tokens), length=granule // 8)
        features.append(MultiModalFeatureSpec(None, "image", image, place))
        tokens += [63] * place.length + [7]
    request = Request(
        request_id=name,
        prompt_token_ids=tokens + answer,
        mm_features=features,
        sampling_params=SamplingParams(
            max_tokens=2 if answer else 6 * granule, ignore_eos=True, temperature=0.0
        ),
        pooling_params=None,
        block_hasher=block_hasher(engine.scheduler),
    )
    return engine.submit(request)


@pytest.mark.parametrize("images", [["cat"], ["cat", "dog"], ["cat", "dog", "bird"]], ids=len)
def test_the_next_turn_hits_the_whole_answer(engine_and_granule, images):
    engine, granule = engine_and_granule
    first = ask(engine, granule, "first", images, [])
    engine.run()
    ask(engine, granule, "next", images, [*engine.outputs["first"], *[9] * 20])
    engine.run()
    assert engine.hits["next"] == (first.num_tokens - 1) // granule * granule


def test_prompts_with_other_first_images_have_other_names(engine_and_granule):
    """Their tokens, their answers and their last images are alike."""
    engine, granule = engine_and_granule
    one = ask(engine, granule, "one", ["cat", "dog"], [])
    engine.run()
    other = ask(engine, granule, "other", ["bird", "dog"], [])
    engine.run()
    assert list(one.all_token_ids) == list(other.all_token_ids)
    assert one.block_hashes[:2] == other.block_hashes[:2]
    assert set(one.block_hashes[2:]).isdisjoint(other.block_hashes[2:])


@pytest.mark.skipif(exact_hashes.KINDS_ARE_HASHED, reason="vLLM goes on from the right image")
def test_going_on_from_the_last_image_is_caught(engine_and_granule, monkeypatch):
    """As vLLM does it: a planted bug for the content oracle."""
    monkeypatch.setattr(exact_hashes, "max", lambda index, _: index, raising=False)
    engine, granule = engine_and_granule
    with pytest.raises(ContentViolation, match="names another content"):
        for name, image in (("one", "cat"), ("other", "bird")):
            ask(engine, granule, name, [image, "dog"], [])
            engine.run()
