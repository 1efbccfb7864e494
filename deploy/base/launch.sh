#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Starts vLLM in a pod: launch.sh [FLAGS OF vllm serve ...]
# Reads POD_IP and, in a LeaderWorkerSet, LWS_WORKER_INDEX, LWS_LEADER_ADDRESS and
# DATA_PARALLEL_SIZE_LOCAL. The leader serves; the other pods run engines only (--headless).
set -eo pipefail

backport="${BACKPORT:-/opt/vllm-ascend-backport}"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

# CANN's scripts read unset variables, hence no `set -u` before them.
for script in /usr/local/Ascend/ascend-toolkit/set_env.sh \
              /usr/local/Ascend/cann-*/share/info/ascendnpu-ir/bin/set_env.sh \
              /usr/local/Ascend/nnal/atb/set_env.sh; do
  if [[ -f "$script" ]]; then
    # shellcheck source=/dev/null
    source "$script" || { echo "launch: $script failed" >&2; exit 1; }
  fi
done
set -u

# For Mooncake, as upstream's nightly run.sh and the image's ~/.bashrc, which nobody reads here.
export LD_LIBRARY_PATH="/usr/local/Ascend/ascend-toolkit/latest/python/site-packages:${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/lib"
jemalloc="/usr/lib/$(uname -m)-linux-gnu/libjemalloc.so.2"
if [[ -f "$jemalloc" ]]; then
  export LD_PRELOAD="$jemalloc${LD_PRELOAD:+:$LD_PRELOAD}"
fi

# HCCL and Gloo want the interface that carries the pod's address.
nic="$(python3 - "$POD_IP" <<'PY'
import sys
import psutil
names = [
    name
    for name, addresses in psutil.net_if_addrs().items()
    if any(address.address == sys.argv[1] for address in addresses)
]
sys.exit(f"launch: no network interface has POD_IP={sys.argv[1]}") if not names else print(names[0])
PY
)"
export VLLM_HOST_IP="$POD_IP" HCCL_IF_IP="$POD_IP"
export HCCL_SOCKET_IFNAME="$nic" GLOO_SOCKET_IFNAME="$nic" TP_SOCKET_IFNAME="$nic"

# Refuse to serve with a broken overlay or with switches that cannot be used. The official image
# has no such tree and is served as it is.
if [[ -d "$backport" ]]; then
  (cd "$backport" && python3 -m vllm_ascend doctor)
fi

flags=(--config "$here/serve.yaml" "$@")
if [[ "${LWS_WORKER_INDEX:-0}" == 0 ]]; then
  # Not in serve.yaml: with --headless vLLM refuses any number of API servers, even from there.
  flags+=(--api-server-count 1)
fi
if [[ -n "${LWS_WORKER_INDEX:-}" ]]; then
  flags+=(--data-parallel-size-local "$DATA_PARALLEL_SIZE_LOCAL" --data-parallel-address)
  if [[ "$LWS_WORKER_INDEX" == 0 ]]; then
    flags+=("$POD_IP")
  else
    # A ZeroMQ socket and HCCL want an address, and DNS may publish the leader a little late.
    flags+=("$(python3 "$here/probe.py" resolve "$LWS_LEADER_ADDRESS" --seconds 300)")
    flags+=(--headless --data-parallel-start-rank $((LWS_WORKER_INDEX * DATA_PARALLEL_SIZE_LOCAL)))
  fi
fi
echo "launch: vllm serve ${flags[*]}"
exec vllm serve "${flags[@]}"
