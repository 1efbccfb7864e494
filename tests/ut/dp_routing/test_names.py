# SPDX-License-Identifier: Apache-2.0
"""Names: chained, alike in every process, and apart wherever vLLM's hashes are apart."""

from __future__ import annotations

import subprocess
import sys

import pytest
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.engine import EngineCoreRequest

from vllm_ascend.dp_routing.names import extend_names, names_check, prompt_names
from vllm_ascend.prefix_cache_config import child_environment

SIZE = 4
TOKENS = list(range(100, 118))


def request(tokens=TOKENS, *, salt=None, adapter=None, image=None, embeds=None):
    features = None
    if image is not None:
        place = PlaceholderRange(offset=5, length=2)
        features = [MultiModalFeatureSpec(None, "image", image, place)]
    return EngineCoreRequest(
        request_id="r",
        prompt_token_ids=tokens,
        mm_features=features,
        sampling_params=None,
        pooling_params=None,
        arrival_time=0.0,
        lora_request=LoRARequest(adapter, 1, "/nowhere") if adapter else None,
        cache_salt=salt,
        data_parallel_rank=None,
        prompt_embeds=embeds,
    )


def test_a_name_stands_for_all_before_it():
    names = prompt_names(request(), SIZE)
    assert len(names) == 4
    other = prompt_names(request([0, *TOKENS[1:]]), SIZE)
    assert not set(names) & set(other)
    late = prompt_names(request([*TOKENS[:9], 0, *TOKENS[10:]]), SIZE)
    assert (late[:2], late[2] == names[2]) == (names[:2], False)


def test_names_may_be_made_bit_by_bit():
    names: list[int] = []
    for end in (1, 3, 4):
        extend_names(names, TOKENS, SIZE, end)
    assert names == prompt_names(request(), SIZE)


@pytest.mark.parametrize(
    ("kwargs", "first_differing"),
    [({"salt": "s"}, 0), ({"adapter": "a"}, 0), ({"image": "i"}, 1)],
    ids=["salt", "adapter", "image"],
)
def test_tenants_and_images_are_told_apart(kwargs, first_differing):
    plain, named = prompt_names(request(), SIZE), prompt_names(request(**kwargs), SIZE)
    assert [a == b for a, b in zip(plain, named, strict=True)].index(False) == first_differing
    assert named == prompt_names(request(**kwargs), SIZE)


def test_what_has_no_tokens_has_no_names():
    assert prompt_names(request(None), SIZE) == []
    assert prompt_names(request(embeds=object()), SIZE) == []


def test_every_process_names_alike():
    code = (
        "from tests.ut.dp_routing.test_names import *\n"
        "print(prompt_names(request(salt='s', adapter='a'), SIZE), names_check(SIZE))"
    )
    # Another seed than this process's: salts are strings, whose own hashes differ by it.
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={**child_environment({}), "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()[-1]
    assert said == f"{prompt_names(request(salt='s', adapter='a'), SIZE)} {names_check(SIZE)}"
