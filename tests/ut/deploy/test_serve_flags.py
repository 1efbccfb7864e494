# SPDX-License-Identifier: Apache-2.0
"""vLLM itself accepts every flag of every pod of its release, and prefill and decode agree."""

from __future__ import annotations

import argparse
import re
from functools import cache
from pathlib import Path

import pytest
from vllm.entrypoints.cli import serve

from tests.ut.deploy.manifests import (
    OF_LATER_VLLM,
    OVERLAYS,
    Workload,
    engines,
    environment,
    objects,
    serve_config,
    workloads,
)
from tests.ut.deploy.pods import in_group, make_pod
from vllm_ascend.releases import running_release

VLLM = running_release().vllm
HERE = [name for name in OVERLAYS if OF_LATER_VLLM.get(name, VLLM) == VLLM]
if VLLM in OF_LATER_VLLM.values():  # the others' flags are those of 0.20.2 and 0.23.0
    HERE = [name for name in HERE if name in OF_LATER_VLLM]
ALL_ENGINES = [(name, workload) for name in HERE for workload in engines(name)]
each_engine = pytest.mark.parametrize(
    ("overlay", "workload"), ALL_ENGINES, ids=lambda value: getattr(value, "name", value)
)


# A pod is (overlay, workload, its index in its group or None).
ALL_PODS = [
    (overlay, workload, index)
    for overlay, workload in ALL_ENGINES
    for index in (range(2) if workload.body["kind"] == "LeaderWorkerSet" else [None])
]


@cache
def vllm_parser() -> argparse.ArgumentParser:
    """Return the parser of the ``vllm`` command with its subcommand ``serve``."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    serve.ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
    return parser


def config_of_vllm(overlay: str) -> str:
    """Return serve.yaml without the type of the indexer's keys that vllm-ascend adds to vLLM's."""
    return serve_config(overlay).replace("attention-config:\n  indexer_kv_dtype: int8\n", "")


def parse(overlay: str, workload: Workload, folder: Path) -> argparse.Namespace:
    """Return what vLLM understands of a pod's serve.yaml and flags."""
    config = folder / "serve.yaml"
    config.write_text(config_of_vllm(overlay))
    flags = workload.container["args"]
    return vllm_parser().parse_args(["serve", "--config", str(config), *flags])


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What ``vllm serve`` goes on to once it has checked its arguments; nothing is loaded."""
    functions: list[str] = []
    for name in ("run_server", "run_multi_api_server", "run_headless"):
        monkeypatch.setattr(serve, name, lambda args, name=name: functions.append(name))
    monkeypatch.setattr(serve.uvloop, "run", lambda coroutine: None)
    return functions


@pytest.mark.parametrize(
    ("overlay", "workload", "index"), ALL_PODS, ids=lambda value: getattr(value, "name", str(value))
)
def test_vllm_serve_starts_with_what_launch_gives_it(
    overlay: str, workload: Workload, index: int | None, tmp_path: Path, started: list[str]
):
    """The checks of ``vllm serve`` behind its parser hold, too, for every pod of a group."""
    pod = make_pod(tmp_path)
    (tmp_path / "etc" / "serve.yaml").write_text(config_of_vllm(overlay))
    if index is not None:
        local_ranks = int(environment(overlay, workload)["DATA_PARALLEL_SIZE_LOCAL"])
        in_group(pod, index, local_ranks=local_ranks)
    done = pod.launch(*workload.container["args"])
    assert done.returncode == 0, done.stderr
    args = vllm_parser().parse_args(pod.flags)
    serve.ServeSubcommand().validate(args)
    serve.ServeSubcommand.cmd(args)
    assert started == ["run_headless" if index else "run_server"]


@each_engine
def test_vllm_accepts_the_flags(overlay: str, workload: Workload, tmp_path: Path):
    args = parse(overlay, workload, tmp_path)
    is_0731 = overlay in OF_LATER_VLLM
    assert args.model == f"/models/DeepSeek-V4-Flash-{'0731-w8a8' if is_0731 else 'w8a8-mtp'}"
    assert args.quantization == "ascend"
    assert args.enable_prompt_tokens_details
    assert args.speculative_config["method"] == ("dspark" if is_0731 else "mtp")


@each_engine
def test_the_prefix_cache_is_on(overlay: str, workload: Workload, tmp_path: Path):
    assert parse(overlay, workload, tmp_path).enable_prefix_caching


@each_engine
def test_parallel_sizes_use_every_die_of_the_pods(overlay: str, workload: Workload, tmp_path: Path):
    args = parse(overlay, workload, tmp_path)
    pods = workload.body["spec"].get("leaderWorkerTemplate", {}).get("size", 1)
    dies = int(workload.container["resources"]["limits"]["huawei.com/ascend-1980"])
    assert args.data_parallel_size * args.tensor_parallel_size == pods * dies
    if pods > 1:
        local = int(environment(overlay, workload)["DATA_PARALLEL_SIZE_LOCAL"])
        assert local * args.tensor_parallel_size == dies


@each_engine
def test_the_block_size_is_said_once(overlay: str, workload: Workload):
    assert not any("block-size" in flag for flag in workload.container["args"])
    assert len(re.findall(r"^block-size: ", serve_config(overlay), re.M)) == 1


@each_engine
def test_the_block_size_does_not_contradict_its_switch(
    overlay: str, workload: Workload, tmp_path: Path
):
    switch = environment(overlay, workload).get("VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE")
    assert switch in (None, str(parse(overlay, workload, tmp_path).block_size))


def test_prefill_and_decode_agree_on_the_blocks_that_they_exchange(tmp_path: Path):
    decode, prefill = sorted(engines("multi-node-pd"), key=lambda w: w.name)
    p, d = (parse("multi-node-pd", w, tmp_path) for w in (prefill, decode))
    assert p.block_size == d.block_size
    assert p.speculative_config == d.speculative_config
    assert p.max_model_len == d.max_model_len
    assert not p.disable_hybrid_kv_cache_manager
    assert not d.disable_hybrid_kv_cache_manager
    assert prefill.container["envFrom"] == decode.container["envFrom"]

    give, take = p.kv_transfer_config, d.kv_transfer_config
    assert give.kv_connector == take.kv_connector == "MooncakeHybridConnector"
    assert (give.kv_role, take.kv_role) == ("kv_producer", "kv_consumer")
    assert give.engine_id != take.engine_id
    sizes = give.kv_connector_extra_config
    assert sizes == take.kv_connector_extra_config
    for role, args in (("prefill", p), ("decode", d)):
        assert sizes[role]["dp_size"] == args.data_parallel_size
        assert sizes[role]["tp_size"] == args.tensor_parallel_size
    # The connector refuses it otherwise.
    assert sizes["prefill"]["tp_size"] >= sizes["decode"]["tp_size"]


def test_connector_ports_keep_clear_of_mooncake_and_of_each_other(tmp_path: Path):
    taken: set[int] = set()
    for workload in engines("multi-node-pd"):
        args = parse("multi-node-pd", workload, tmp_path)
        first = int(args.kv_transfer_config.kv_port)
        ports = set(range(first, first + args.data_parallel_size * args.tensor_parallel_size))
        assert min(ports) >= 20000 + 1000 * 16, "AscendDirectTransport takes ports up to there"
        assert not ports & taken
        taken |= ports


def test_the_proxy_knows_both_leaders_and_asks_both():
    (proxy,) = (w for w in workloads("multi-node-pd") if w.labels["role"] == "proxy")
    services = {b["metadata"]["name"] for b in objects("multi-node-pd") if b["kind"] == "Service"}
    hosts = dict(flag.split("=", 1) for flag in proxy.container["args"])
    leaders = {hosts["--prefiller-hosts"], hosts["--decoder-hosts"]}
    assert leaders == {"vllm-dsv4-leader-prefill", "vllm-dsv4-leader-decode"} <= services
    for name in ("startupProbe", "readinessProbe"):
        command = proxy.container[name]["exec"]["command"]
        assert {f"http://{leader}:8000" for leader in leaders} <= set(command)
