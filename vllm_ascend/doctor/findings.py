# SPDX-License-Identifier: Apache-2.0
"""What the doctor found out: frozen records, the only thing that its output is made from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

SCHEMA_VERSION = 1

EXIT_RIGHT = 0
EXIT_WRONG = 1
EXIT_BAD_INPUT = 2


class Severity(str, Enum):
    """How much a finding matters.

    ``WRONG``: an engine would not start, or would silently not do what the settings ask for.
    ``WARNING``: it would, but a setting does not help or something looks unintended.
    """

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """One sentence about one thing.

    Attributes:
        probe: Which probe found it.
        severity: How much it matters.
        text: What is so.
        remedy: What to do about it; empty if there is nothing to do, or if ``command`` says it.
        command: The shell command that does it; empty if there is none.
    """

    probe: str
    severity: Severity
    text: str
    remedy: str = ""
    command: str = ""


@dataclass(frozen=True)
class Version:
    """A component, its version, and where it comes from; ``version`` is ``None`` if absent."""

    name: str
    version: str | None
    origin: str = ""


@dataclass(frozen=True)
class VariableRow:
    """One environment variable of the project.

    Attributes:
        name: The variable.
        value: What is in force; the raw value if it is not allowed; ``"unset"`` for none.
        source: ``"set"``, ``"default"``, ``"profile"``, ``"vllm"`` (vLLM reads it, we do not) or
            ``"invalid"``.
        allowed: The allowed values.
        effect: What it does.
    """

    name: str
    value: str
    source: str
    allowed: str
    effect: str


@dataclass(frozen=True)
class PatchRow:
    """What became of one patch in a serving process.

    Attributes:
        target: ``"module:function"`` or ``"module:Class.attribute"``; a module of ours where not
            even its table can be read.
        feature: What it belongs to.
        status: One of the constants of :mod:`vllm_ascend.doctor.patches`.
        reason: Why it is so; for an applied patch, why there is one.
    """

    target: str
    feature: str
    status: str
    reason: str


@dataclass(frozen=True)
class GroupRow:
    """One kind of KV cache.

    Attributes:
        kind: In words.
        num_groups: Groups that hold such caches.
        num_layers: Layers in them, all together.
        rows: Rows per block.
        tokens: Tokens per block.
        page_bytes: Bytes of a layer's page.
    """

    kind: str
    num_groups: int
    num_layers: int
    rows: int
    tokens: int
    page_bytes: int


@dataclass(frozen=True)
class LayoutFacts:
    """What would be in force for a model.

    Attributes:
        model: The model's type.
        coordinator: Class of the KV cache coordinator.
        block_size: ``--block-size`` in force.
        groups: Its KV caches.
        granule: The finest unit in which hits can be measured, in tokens.
        alignment: Hits are multiples of it, in tokens.
        smallest_prefix: The smallest common prefix that hits, in tokens, as the real scheduler
            was seen to answer; ``None`` if nothing that fits ``max_model_len`` does.
        hits_from_request: The first request with that prefix that hits: the 2nd or the 3rd.
        retention_interval: In tokens; ``None``: every boundary is kept.
        bytes_per_block: KV cache bytes of one block over all layers.
        tokens_per_gib: About how many tokens of prefixes a GiB of KV cache holds.
        max_model_len: Tokens of the longest request.
        warnings: What the engine would warn of at its start.
        weights: With a KV connector: names the model's files, as engines do in their logs;
            ``None``: their weights are not there.
    """

    model: str
    coordinator: str
    block_size: int
    groups: tuple[GroupRow, ...]
    granule: int
    alignment: int
    smallest_prefix: int | None
    hits_from_request: int | None
    retention_interval: int | None
    bytes_per_block: int
    tokens_per_gib: int
    max_model_len: int
    warnings: tuple[str, ...]
    weights: str | None = None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LayoutFacts:
        """Return what :func:`dataclasses.asdict` made a dictionary of."""
        groups = tuple(GroupRow(**group) for group in data["groups"])
        return cls(**{**data, "groups": groups, "warnings": tuple(data["warnings"])})


@dataclass(frozen=True)
class OverlayFacts:
    """The overlay over a vllm-ascend checkout.

    Attributes:
        state: One of the overlay's own words; or ``"none"`` where there is no checkout that it
            could lie over, ``"unsupported"`` where there is one for another vLLM, or ``"unknown"``.
        text: In words.
        checkout: The checkout looked at, if any.
        head: Its commit, if known.
        command: The shell command that cures it; empty if there is none.
        out_of_force: Files of vllm-ascend that were changed, and that ours take the place of.
    """

    state: str
    text: str
    checkout: str | None = None
    head: str | None = None
    command: str = ""
    out_of_force: tuple[str, ...] = ()


@dataclass(frozen=True)
class CommandFacts:
    """The serving command that was judged; ``container`` names what runs it in a manifest."""

    text: str
    container: str


@dataclass(frozen=True)
class Diagnosis:
    """Everything that one run of the doctor found."""

    versions: tuple[Version, ...]
    overlay: OverlayFacts
    patches: tuple[PatchRow, ...]
    variables: tuple[VariableRow, ...]
    layout: LayoutFacts | None
    findings: tuple[Finding, ...]
    command: CommandFacts | None = None

    @property
    def exit_code(self) -> int:
        """``EXIT_WRONG`` if any finding is wrong, else ``EXIT_RIGHT``."""
        return EXIT_WRONG if self.count(Severity.WRONG) else EXIT_RIGHT

    def count(self, severity: Severity) -> int:
        """Return the number of findings of a severity."""
        return sum(finding.severity is severity for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "schema_version": SCHEMA_VERSION,
            "verdict": "wrong" if self.exit_code else "right",
            "exit_code": self.exit_code,
            **asdict(self),
        }
