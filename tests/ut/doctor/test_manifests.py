# SPDX-License-Identifier: Apache-2.0
"""Manifests: which command they serve, with which environment, and what they do not tell."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.doctor.manifests import serving_command_of

PROFILE = "VLLM_ASCEND_PREFIX_CACHE_PROFILE"
SWITCHES = f"""
apiVersion: v1
kind: ConfigMap
metadata: {{name: switches}}
data:
  {PROFILE}: best
  VLLM_ASCEND_SPARE_TAILS: "1"
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: engine}
spec:
  template:
    spec:
      initContainers:
        - {name: first, image: i, command: [vllm, serve, not-this-one]}
      containers:
        - name: log
          image: busybox
          command: [tail, -f, /dev/null]
        - name: vllm
          image: i
          command: [vllm, serve, $(MODEL)]
          args: [--block-size, "128", --host=$(POD_IP)]
          envFrom:
            - configMapRef: {name: switches}
            - secretRef: {name: token}
          env:
            - {name: FOLDER, value: /models}
            - {name: MODEL, value: $(FOLDER)/m}
            - {name: VLLM_ASCEND_SPARE_TAILS, value: "0"}
            - name: COPY
              valueFrom: {configMapKeyRef: {name: switches, key: VLLM_ASCEND_SPARE_TAILS}}
            - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
"""
COMPOSE = """
services:
  router: {image: nginx}
  engine:
    image: vllm/vllm-openai
    command: >-
      --model ${MODEL:-/models/m} --kv-transfer-config '{"kv_connector": "X"}'
    env_file: [switches.env, {path: nowhere.env, required: false}]
    environment:
      - VLLM_ASCEND_SPARE_TAILS=0
      - PYTHONHASHSEED
"""


@pytest.fixture
def write(tmp_path: Path):
    """Return a function that writes a manifest and returns its name."""

    def write(text: str, name: str = "manifest.yaml") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_a_deployment_serves_its_container_with_its_environment(write):
    file = write(f"{SWITCHES}---{DEPLOYMENT}")
    command = serving_command_of(file, None, {"PATH": "/bin", PROFILE: "stock", "VLLM_X": "1"})
    assert command.container == "engine/vllm"
    assert command.flags == ("/models/m", "--block-size", "128", "--host=$(POD_IP)")
    assert command.environ == {
        "PATH": "/bin",
        PROFILE: "best",
        "VLLM_ASCEND_SPARE_TAILS": "0",
        "FOLDER": "/models",
        "MODEL": "/models/m",
        "COPY": "1",
    }


def test_a_list_and_other_kinds_of_workloads_are_read(write):
    file = write(
        """
kind: List
items:
  - kind: LeaderWorkerSet
    metadata: {name: prefill}
    spec:
      leaderWorkerTemplate:
        workerTemplate:
          spec:
            containers: [{name: vllm, command: [bash, -c, 'A=1 vllm serve m']}]
"""
    )
    command = serving_command_of(file, None, {})
    assert (command.container, command.flags, command.environ) == (
        "prefill/vllm",
        ("m",),
        {"A": "1"},
    )


def test_a_compose_file_serves_its_service(write):
    write(f"# switches\n{PROFILE}=best\nVLLM_ASCEND_SPARE_TAILS='1'\n", "switches.env")
    environ = {"PYTHONHASHSEED": "0", "VLLM_PIN_SWA_TOKENS": "1"}
    command = serving_command_of(write(COMPOSE), None, environ)
    assert command.container == "engine"
    assert command.flags == (
        "--model", "/models/m", "--kv-transfer-config", '{"kv_connector": "X"}',
    )  # fmt: skip
    assert command.environ == {
        PROFILE: "best", "VLLM_ASCEND_SPARE_TAILS": "0", "PYTHONHASHSEED": "0",
    }  # fmt: skip


def test_standard_input_is_read(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("services: {a: {command: vllm serve m}}"))
    assert serving_command_of("-", None, {}).flags == ("m",)


def bomb(join: str) -> str:
    """Nine lists of ten aliases each: a thousand million values in a few hundred bytes."""
    lines = ["kind: Deployment", "a0: &a0 " + ("[x]" if join == "[{}]" else "{k: v}")]
    for level in range(1, 10):
        aliases = ",".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} " + join.format(aliases))
    return "\n".join(lines)


ENDLESS = {
    "cycle": ("kind: Deployment\nspec: &a\n  b: *a\n", "&a contains itself"),
    "cycle of a list": ("services: &a [[*a]]", "&a contains itself"),
    "cycle by merging": ("services: &a {<<: *a}", "&a contains itself"),
    "aliases": (bomb("[{}]"), "more than 100,000 values"),
    "merged aliases": (bomb("{{<<: [{}]}}"), "more than 100,000 values"),
    "deep": ("kind: " + "[" * 100_000, "more than 64 levels deep"),
    "deep by aliases": (
        "kind: D\na0: &a0 [x]\n" + "\n".join(f"a{i + 1}: &a{i + 1} [*a{i}]" for i in range(99)),
        "more than 64 levels deep",
    ),
    "large": ("kind: Deployment\n" + "#" * (1 << 20), "larger than 1 MiB"),
    "values of values": (
        "{kind: Deployment, spec: {containers: [{name: c, env: [{name: V0, value: xx}, "
        + ", ".join(f"{{name: V{i + 1}, value: $(V{i})$(V{i})}}" for i in range(60))
        + "]}]}}",
        "longer than 131,072 characters",
    ),
}


@pytest.mark.parametrize(("text", "what"), ENDLESS.values(), ids=ENDLESS)
def test_a_file_without_end_is_one_clear_error(write, text, what):
    with pytest.raises(BadInputError, match=what):
        serving_command_of(write(text), None, {})


def test_a_device_without_end_is_one_clear_error(write):
    with pytest.raises(BadInputError, match="larger than 1 MiB"):
        serving_command_of("/dev/zero", None, {})
    file = write("services: {a: {command: vllm serve m, env_file: /dev/zero}}")
    with pytest.raises(BadInputError, match="env_file /dev/zero cannot be read"):
        serving_command_of(file, None, {})


def test_aliases_are_read(write):
    file = write(
        """
x-common: &common
  environment: {VLLM_ASCEND_SPARE_TAILS: "1"}
services:
  a: {<<: *common, command: vllm serve m}
"""
    )
    assert serving_command_of(file, None, {}).environ == {"VLLM_ASCEND_SPARE_TAILS": "1"}


TWO = """
services:
  prefill: {command: vllm serve p}
  decode: {command: vllm serve d}
"""


def test_one_of_several_is_chosen_by_its_name(write):
    file = write(TWO)
    assert serving_command_of(file, "decode", {}).flags == ("d",)
    with pytest.raises(BadInputError, match="several containers serve, say --container: prefill"):
        serving_command_of(file, None, {})
    with pytest.raises(BadInputError, match=r"--container other: .* has prefill, decode"):
        serving_command_of(file, "other", {})


def test_a_container_is_named_with_or_without_its_workload(write):
    file = write(f"{SWITCHES}---{DEPLOYMENT}")
    for name in ("vllm", "engine/vllm"):
        assert serving_command_of(file, name, {}).container == "engine/vllm"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no container runs `vllm serve`"),
        ("a: [", "not a readable YAML file"),
        ("just a text", "no container runs `vllm serve`"),
        ("services: {a: {command: nginx}}", "a runs nginx. Give the doctor the command itself"),
        ("services: {a: {image: i}}", "a runs its image"),
        ('services: {a: {command: "vllm serve \'m"}}', "No closing quotation"),
        ("services: {a: {env_file: nowhere.env}}", "env_file nowhere.env cannot be read"),
        ("services: {a: 1}", "neither a Kubernetes manifest nor a compose file"),
        ("kind: Pod\nmetadata: 1", "neither a Kubernetes manifest nor a compose file"),
        ("kind: Pod\nspec: {containers: {a: 1}}", "neither a Kubernetes manifest nor"),
        ("kind: Pod\nspec: {containers: [{env: [x]}]}", "neither a Kubernetes manifest nor"),
        (DEPLOYMENT, "engine/vllm takes its environment from the ConfigMap switches, which is"),
    ],
)
def test_a_manifest_that_does_not_tell_is_bad_input(write, text, message):
    file = write(text)
    with pytest.raises(BadInputError, match=message) as raised:
        serving_command_of(file, None, {})
    assert str(raised.value).startswith(f"--manifest {file}: ") and "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_bad_input(tmp_path):
    with pytest.raises(BadInputError, match="not a readable YAML file"):
        serving_command_of(str(tmp_path / "nowhere.yaml"), None, {})
