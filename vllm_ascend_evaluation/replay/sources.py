# SPDX-License-Identifier: Apache-2.0
"""What ``--workload`` names: a generated workload, a model of traffic, or a file."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.own_traffic import store_of
from vllm_ascend_evaluation.replay.readers.agents import agents_workload, is_agents
from vllm_ascend_evaluation.replay.readers.mooncake import is_mooncake, mooncake_workload
from vllm_ascend_evaluation.replay.token_store import read_index
from vllm_ascend_evaluation.replay.trace import Workload, count_assumed
from vllm_ascend_evaluation.replay.workloads import (
    MODELS,
    W4,
    WORKLOAD_NAMES,
    modelled,
    named_workload,
    round_robin,
    shared_prefix,
)

_CONCURRENCY = 32
_SHARED_PREFIX = re.compile(r"(\d+):(\d+):(\d+)(%?):(\d+)", re.ASCII)
_MODEL = re.compile(rf"({'|'.join(MODELS)}):(\d{{1,9}})", re.ASCII)
_ROUND_ROBIN = re.compile(r"(\d+)x(\d+):(\d+):(\d+):(\d+)", re.ASCII)


@dataclass(frozen=True)
class WorkloadSource:
    """Where requests come from.

    Attributes:
        source: A name (``W1``, ``chat`` ...), ``chat:REQUESTS`` and the other models alike, a file,
            a folder with sessions of coding agents,
            ``REQUESTS:INPUT:SHARED:OUTPUT`` for generated prompts that share a prefix
            (``SHARED`` in tokens or as ``90%``), or ``PREFIXESxROUNDS:SHARED:OWN:OUTPUT`` for
            several prefixes asked for in turn.
        seed: Seed of generated prompts.
        concurrency: Requests in flight; the workload's own if ``None``.
        max_requests: Only so many from the start.
        max_output_tokens: Cap on answers, and their length where a file says none.
        tokenizer: Folder of the model's tokenizer, for a file that holds text.
        uses_times: Whether requests arrive at a file's times: then all have one, or none has.
        poisson_rate: Requests come at random, so many per second; ``None``: at their own times.
        store: What :meth:`prepared` made of a file that is read once only.
    """

    source: str
    seed: int = 0
    concurrency: int | None = None
    max_requests: int | None = None
    max_output_tokens: int | None = None
    tokenizer: str | None = None
    uses_times: bool = True
    poisson_rate: float | None = None
    store: str | None = None

    def prepared(self, *, uses_times: bool = True) -> WorkloadSource:
        """Return a source that costs little to load, in any process while this one lives.

        All but traces of ids are read, and their texts tokenized, here and once.

        Args:
            uses_times: Of a file; see the attribute.

        Raises:
            BadInputError: Names the file, the line and what is wrong.
        """
        if self.store is not None or self._generated() is not None:
            return self
        source = replace(self, uses_times=uses_times)
        path = self._path()
        if is_agents(path) or is_mooncake(path):
            return source
        limits = (self.max_requests, self.max_output_tokens)
        store = store_of(path, self.tokenizer, *limits, uses_times)
        return replace(source, store=str(store))

    def load(self) -> Workload:
        """Open and check the source.

        Raises:
            BadInputError: Names the source and what is wrong with it.
        """
        workload = self._as_it_is()
        if self.poisson_rate is None:
            return workload
        return workload.arriving(self.poisson_rate, self.seed)

    def _as_it_is(self) -> Workload:
        workload = self._generated()
        if workload is None:
            return self._file()
        if self.concurrency is not None:
            workload = replace(workload, concurrency=self.concurrency)
        return workload.cut(self.max_requests, self.max_output_tokens)

    def _generated(self) -> Workload | None:
        """Return what is made here, ``None`` if the source is none of that."""
        if self.source in WORKLOAD_NAMES:
            return named_workload(self.source, seed=self.seed)
        model = _MODEL.fullmatch(self.source)
        if model is not None:
            return modelled(model[1], name=self.source, num_requests=int(model[2]), seed=self.seed)
        shape = _SHARED_PREFIX.fullmatch(self.source)
        if shape is not None:
            return self._shared_prefix(*shape.groups())
        turns = _ROUND_ROBIN.fullmatch(self.source)
        if turns is not None:
            return self._round_robin(*map(int, turns.groups()))
        return None

    def _path(self) -> Path:
        path = Path(self.source)
        if self.source == "W4":
            raise BadInputError(f"--workload W4: {W4}")
        if path.is_dir() and not is_agents(path):
            raise BadInputError(
                f"--workload {self.source}: this folder has no .json or .jsonl file, gzip'd or not"
            )
        if not path.exists():
            raise BadInputError(
                f"--workload {self.source}: neither a file, nor a folder, nor "
                "REQUESTS:INPUT:SHARED:OUTPUT, nor PREFIXESxROUNDS:SHARED:OWN:OUTPUT, nor "
                f"MODEL:REQUESTS ({', '.join(MODELS)}), nor one of {', '.join(WORKLOAD_NAMES)}"
            )
        return path

    def _file(self) -> Workload:
        if self.store is not None:
            return self._stored(Path(self.store))
        path = self._path()
        if is_agents(path):
            return agents_workload(
                path,
                seed=self.seed,
                max_requests=self.max_requests,
                max_output_tokens=self.max_output_tokens,
                concurrency=self.concurrency or _CONCURRENCY,
            )
        if not is_mooncake(path):
            return self.prepared(uses_times=self.uses_times)._file()
        return mooncake_workload(
            path,
            max_requests=self.max_requests,
            max_output_tokens=self.max_output_tokens,
            concurrency=self.concurrency or _CONCURRENCY,
            uses_times=self.uses_times,
        )

    def _stored(self, path: Path) -> Workload:
        name = Path(self.source).name
        store = read_index(path)
        workload = Workload(
            name=name,
            description=f"{store.num_requests} requests of {name}",
            concurrency=self.concurrency or _CONCURRENCY,
            num_requests=store.num_requests,
            requests=store.requests,
            assumed=count_assumed(row.assumed for row in store.rows),
        )
        return workload.cut(None, self.max_output_tokens)

    def _shared_prefix(
        self, requests: str, inputs: str, shared: str, unit: str, outputs: str
    ) -> Workload:
        share = int(shared)
        return shared_prefix(
            self.source,
            num_requests=int(requests),
            input_tokens=int(inputs),
            shared_tokens=int(inputs) * share // 100 if unit else share,
            output_tokens=int(outputs),
            concurrency=self.concurrency or _CONCURRENCY,
            seed=self.seed,
        )

    def _round_robin(
        self, prefixes: int, rounds: int, shared: int, own: int, outputs: int
    ) -> Workload:
        return round_robin(
            self.source,
            num_prefixes=prefixes,
            num_rounds=rounds,
            shared_tokens=shared,
            own_tokens=own,
            output_tokens=outputs,
            concurrency=self.concurrency or 1,
            seed=self.seed,
        )
