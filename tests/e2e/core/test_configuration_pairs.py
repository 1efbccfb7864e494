# SPDX-License-Identifier: Apache-2.0
"""Every pair of settings works, every row verified, or is refused before anything is scheduled.

What cannot work is listed here. The error comes from this project's own code and names what was
set, unless vLLM raises the same with nothing of ours set.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
from vllm.config import KVTransferConfig

import vllm_ascend
from tests.conftest import HITS
from tests.e2e.connectors.connected import ConnectedEngine
from tests.e2e.connectors.fake_connector import transfer_config
from tests.e2e.core import layouts
from tests.e2e.core.configurations import (
    DSV4,
    MIN_DROP,
    PARTIAL,
    PIN,
    PROFILE,
    RETENTION,
    SPARE,
    SPARSE,
)
from tests.e2e.core.engine import Engine
from tests.e2e.core.pairs import Assignment, covering
from vllm_ascend.dry_run import scheduler as replay_scheduler
from vllm_ascend.dry_run.layouts import KVLayout
from vllm_ascend.dry_run.scheduler import SchedulerOptions
from vllm_ascend.prefix_cache_config import load_config
from vllm_ascend.releases import running_release
from vllm_ascend_evaluation.oracle import OracleOptions

ROWS = "VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE"
_HUGE = str(128 * 10**15)
OURS = Path(vllm_ascend.__file__).parent

# None leaves a variable unset; "fits" is a number that each layout has.
SWITCHES: dict[str, tuple[Any, ...]] = {
    DSV4: (None, "0", "1"),
    PROFILE: (None, "stock", "best"),
    RETENTION: (None, "auto", "0", "fits", _HUGE),
    PARTIAL: (None, "0", "1"),
    SPARSE: (None, "0", "1"),
    SPARE: (None, "0", "1"),
    PIN: (None, "0", "1"),
    MIN_DROP: (None, "0", "1", _HUGE),
    ROWS: (None, "32", "64", "128"),
}
OPTIONS: dict[str, tuple[Any, ...]] = {
    "num_speculative_tokens": (0, 1, 3),
    "async_scheduling": (False, True),
    "enable_prefix_caching": (True, False),
    "enable_kv_cache_events": (False, True),
    "policy": ("fcfs", "priority"),
    "hash_algorithm": ("sha256", "sha256_cbor"),
    "connector": (None, "knows granules", "expects blocks"),
    "pipeline_parallel_size": (1, 2),
}
NEEDS_WINDOWS = (RETENTION, PIN)


@dataclass(frozen=True)
class Model:
    """A layout, and what the rules need to know of it.

    Attributes:
        make: Number of speculative tokens -> layout.
        alignment: What hits align to, in tokens, if they end with whole blocks.
        granule: What they align to otherwise.
        has_windows: There is something to retain and to pin.
        lacks: Options that vLLM does not have for it, or has and is not exact.
    """

    make: Callable[[int], KVLayout]
    alignment: int
    granule: int
    has_windows: bool = True
    lacks: tuple[str, ...] = ()

    def axes(self) -> dict[str, tuple[Any, ...]]:
        """Return every setting with the values that this model can have."""
        axes = {**SWITCHES, **OPTIONS}
        if not self.has_windows:
            axes |= dict.fromkeys(NEEDS_WINDOWS, (None,))
        return axes | {name: OPTIONS[name][:1] for name in self.lacks}


MODELS = {
    "dsv4-rows": Model(lambda k: layouts.dsv4_rows_tiny(mtp=k > 0), 64, 16),
    "dsv4-stock": Model(lambda k: layouts.dsv4_stock_tiny(mtp=k > 0), 32, 16),
    "gemma": Model(lambda k: layouts.gemma_like(4, 9), 4, 4),
    "full": Model(lambda k: layouts.full_only(), 4, 4, has_windows=False),
    "chunked-local": Model(
        lambda k: layouts.chunked_local(),
        4,
        4,
        has_windows=False,
        lacks=("num_speculative_tokens",),
    ),
    "mamba": Model(
        lambda k: layouts.mamba_hybrid(16, k),
        16,
        16,
        has_windows=False,
        lacks=("num_speculative_tokens", "connector"),
    ),
}


@dataclass(frozen=True)
class Setting:
    """An assignment for a model."""

    model: Model
    values: Assignment

    @property
    def environment(self) -> dict[str, str]:
        """The variables."""
        values = {name: self.values[name] for name in SWITCHES if self.values[name] is not None}
        fitting = {"fits": 2 * self.model.alignment, "misfits": 2 * self.model.alignment + 1}
        interval = fitting.get(values.get(RETENTION, ""))
        return values if interval is None else {**values, RETENTION: str(interval)}

    @property
    def is_exact(self) -> bool:
        """Whether exactness is promised: vLLM's own is not with drafts in flight.

        See test_vllm_defects.py; without a cache the project leaves everything to vLLM.
        """
        values = self.values
        if not (values["async_scheduling"] and values["num_speculative_tokens"]):
            return True
        is_ours = load_config(self.environment).changes_caching or values[DSV4] == "1"
        return not self.model.has_windows or (is_ours and values["enable_prefix_caching"])

    def but(self, **values: Any) -> Setting:
        """The same with other values."""
        return replace(self, values={**self.values, **values})

    def engine(self) -> Engine:
        """Build it, as vLLM would."""
        values = self.values
        layout = self.model.make(values["num_speculative_tokens"])
        names = [field.name for field in fields(SchedulerOptions) if field.name in values]
        options = SchedulerOptions(
            num_blocks=600,
            max_num_seqs=3,
            max_num_batched_tokens=5 * self.model.alignment,
            max_model_len=12 * self.model.alignment,
            **{name: values[name] for name in names},
        )
        oracle = OracleOptions(
            strict_state=load_config().changes_caching,
            strict_draft=load_config().changes_caching,
        )
        if values["connector"] is None:
            return Engine(layout, options, oracle)
        return ConnectedEngine(layout, options, self._transfer(), oracle)

    def _transfer(self) -> KVTransferConfig:
        return transfer_config(
            seed=1,
            failures=0.1,
            unit=self.model.alignment,
            knows_granules=self.values["connector"] == "knows granules",
        )


@pytest.fixture
def build(
    switch: Callable[[Mapping[str, str]], None], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Setting], Engine]:
    """Build an engine under a setting."""
    make_config = replay_scheduler._vllm_config

    def build(setting: Setting) -> Engine:
        values = setting.values

        def with_options(*args: Any) -> Any:
            config = make_config(*args)
            parallel = config.parallel_config
            parallel.pipeline_parallel_size = values["pipeline_parallel_size"]
            parallel.decode_context_parallel_size = values.get("decode_context_parallel_size", 1)
            hash_tokens = values.get("hash_block_size")
            setattr(config.cache_config, running_release().hash_size_field, hash_tokens)
            return config

        monkeypatch.setattr(replay_scheduler, "_vllm_config", with_options)
        monkeypatch.setattr(replay_scheduler, "_HASH_ALGORITHM", values["hash_algorithm"])
        switch(setting.environment)
        return setting.engine()

    return build


def settings(name: str, seed: int = 0) -> list[Setting]:
    """Return settings that contain every pair of values that a model can have."""
    model = MODELS[name]
    return [Setting(model, values) for values in covering(model.axes(), seed)]


def talk(engine: Engine, unit: int) -> None:
    """A prompt, again, one that leaves it, a tenant of its own, and the next turn."""
    first = [i * 7 % 50 for i in range(5 * unit + unit // 2 + 3)]
    branch = [*first[: 3 * unit + unit // 2 + 1], *(i * 3 % 50 for i in range(unit))]
    engine.add("first", first, 6)
    engine.run()
    engine.add("again", first, 3)
    engine.add("branch", branch, 3)
    engine.add("branch again", branch, 3)
    engine.add("tenant", first, 3, cache_salt="another")
    engine.run()
    engine.add("next turn", first + engine.outputs["first"] + first[:unit], 3)
    engine.drain()


@pytest.mark.parametrize("name", MODELS)
def test_every_pair_of_settings_works(name, build, verified_steps):
    """Random triples come with it: two coverings share few."""
    hits = 0
    for seed in range(2):
        for setting in settings(name, seed):
            try:
                engine = build(setting)
                if not setting.is_exact:
                    engine = build(setting.but(num_speculative_tokens=0))
                talk(engine, setting.model.alignment)
            except Exception as error:
                error.add_note(f"{name}: {setting.environment} {setting.values}")
                raise
            verified_steps["pairs of settings"] += engine.worker.num_steps
            hits += sum(hit > 0 for hit in engine.hits.values())
    verified_steps[HITS] += hits
    assert hits > 50, "settings that hit nothing prove little"


# What cannot work: what is set -> what the error names.
WRONG = [
    ({RETENTION: "misfits", PARTIAL: "0"}, RETENTION),
    ({RETENTION: "misfits", PARTIAL: "1"}, RETENTION),
    ({"hash_block_size": 3}, "hash_block_size"),
    ({"decode_context_parallel_size": 2}, "context parallelism"),
]
WRONG_WITHOUT_WINDOWS = [
    *(({RETENTION: interval}, RETENTION) for interval in ("auto", "0", "fits", _HUGE)),
    ({PIN: "1"}, PIN),
]


def is_ours(error: BaseException) -> bool:
    """Whether this project's code raised it."""
    return OURS in Path(traceback.extract_tb(error.__traceback__)[-1].filename).parents


def refusal(build: Callable[[Setting], Engine], setting: Setting) -> Exception | None:
    """Return what building it raises."""
    try:
        build(setting)
    except Exception as error:
        return error
    return None


def assert_refused(build, setting: Setting, named: str) -> None:
    """Refused with one clear sentence of ours, or as vLLM refuses it with nothing of ours set."""
    error = refusal(build, setting)
    what = f"{setting.environment} {setting.values}: {error!r}"
    assert type(error) is ValueError and named in str(error), what
    if not is_ours(error):
        bare = refusal(build, setting.but(**dict.fromkeys(SWITCHES)))
        assert str(bare) == str(error), what
    assert len(str(error).splitlines()) == 1, what


@pytest.mark.parametrize(("wrong", "named"), WRONG, ids=lambda value: str(value))
@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.has_windows])
def test_what_cannot_work_is_refused_whatever_else_is_set(name, wrong, named, build):
    for setting in settings(name):
        if setting.values["enable_prefix_caching"]:
            assert_refused(build, setting.but(**wrong), named)


@pytest.mark.parametrize(("wrong", "named"), WRONG_WITHOUT_WINDOWS, ids=lambda value: str(value))
@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if not model.has_windows])
def test_what_a_model_lacks_is_named_whatever_else_is_set(name, wrong, named, build):
    for setting in settings(name):
        if setting.values["enable_prefix_caching"]:
            assert_refused(build, setting.but(**wrong), named)


@pytest.mark.skipif(not running_release().counts_rows, reason="this vLLM takes it")
@pytest.mark.parametrize("name", MODELS)
def test_context_parallelism_of_several_groups_is_refused_without_a_cache_too(name, build):
    """As vLLM does with nothing of ours set. One group alone it takes, and Ascend its layout."""
    for setting in settings(name):
        wrong = setting.but(decode_context_parallel_size=2, enable_prefix_caching=False)
        if name in ("full", "dsv4-rows"):
            assert refusal(build, wrong) is None
        else:
            assert_refused(build, wrong, "context parallelism")
