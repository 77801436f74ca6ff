"""The command line and environment of one `ray start`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from octad.clusters._ports import PortBlock
from octad.clusters._processes import MARK
from octad.errors import ConfigError
from octad.spec.clusters import CARD_RESOURCE
from octad.spec.layouts import CARDS_PER_NODE

# A Unix socket's path may have 107 bytes; "/r/session_<date>_<pid>/sockets/..." is added.
_MAX_SOCKET_PATH = 107
_RAY_SOCKET_PATH = 77
_RAY_FOLDER = "r"
# Not the nodes' business: other Rays, trackers and Python set-ups of whoever starts them.
_FOREIGN = ("RAY_", "MLFLOW_", "OCTAD_", "PYTEST_", "COV_", "COVERAGE_")
_FOREIGN_NAMES = {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONWARNINGS", "VIRTUAL_ENV"}

_TUNED = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A lost node is noticed in seconds instead of 16 (killed) or 65 (hanging). Workers run at a
    # lower priority than what answers these checks, so a busy machine does not fail them.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    # Nobody restarts a lost head alone, so its nodes need not wait a minute for it.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "15",
    # Else the first driver makes Ray start as many idle workers as the node claims CPUs.
    "RAY_prestart_worker_first_driver": "0",
    # On SIGTERM a node would first wait 30 s for its work to end; we stop jobs ourselves.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    # Fresh answers about nodes and free cards.
    "RAY_DASHBOARD_NO_CACHE": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "2",
    # Renamed processes keep their environment readable, and with it our mark.
    "SPT_NOENV": "1",
    # Off Linux, Ray asks for this before it lets a second node join.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
    # A simulated card must not touch a real one.
    "CUDA_VISIBLE_DEVICES": "",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def command(
    name: str, ports: PortBlock, *, temp: Path, num_cpus: int, object_store_mib: int, join: str
) -> list[str]:
    """The `ray start` of one node.

    Args:
        name: Of the node.
        ports: All its ports.
        temp: Its private temporary folder. Ray opens the folder it is given to everybody (mode
            0777), so it is given one inside.
        num_cpus: What it claims to have: it bounds workers, not their speed.
        object_store_mib: Shared memory for objects, MiB.
        join: `host:port` of the head; empty for the head itself.
    """
    role = [f"--address={join}"] if join else _head_options(ports)
    return [
        # Not the script `ray`, whose first line may be too long for the system.
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
        *role,
        f"--node-name={name}",
        f"--node-ip-address={ports.address}",
        f"--dashboard-agent-listen-port={ports.agent}",
        f"--dashboard-agent-grpc-port={ports.agent_grpc}",
        f"--node-manager-port={ports.node_manager}",
        f"--object-manager-port={ports.object_manager}",
        f"--runtime-env-agent-port={ports.runtime_env_agent}",
        f"--metrics-export-port={ports.metrics}",
        f"--min-worker-port={ports.workers[0]}",
        f"--max-worker-port={ports.workers[1]}",
        f"--temp-dir={temp / _RAY_FOLDER}",
        f"--resources={json.dumps({CARD_RESOURCE: CARDS_PER_NODE})}",
        f"--num-cpus={num_cpus}",
        "--num-gpus=0",
        f"--object-store-memory={object_store_mib * 1024**2}",
        "--disable-usage-stats",
    ]


def environment(
    given: Mapping[str, str], *, mark: str, token_file: Path, temp: Path, addresses: list[str]
) -> dict[str, str]:
    """The environment of a node, and so of every job on it.

    Args:
        given: The environment of whoever starts it.
        mark: Who it belongs to.
        token_file: Holds the cluster's token.
        temp: The node's temporary folder, and so what its processes forget there.
        addresses: Those of the cluster's nodes, that no proxy must come between.
    """
    env = {
        key: value
        for key, value in given.items()
        if key not in _FOREIGN_NAMES and not key.upper().startswith(_FOREIGN)
    }
    # `python` of a job's command line is the interpreter that runs the cluster.
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    direct = [env.get("no_proxy") or env.get("NO_PROXY") or "", "localhost", "127.0.0.1"]
    env["no_proxy"] = env["NO_PROXY"] = ",".join(filter(None, [*direct, *addresses]))
    if sys.platform == "linux":
        # The nodes share one machine; its host name may lead anywhere.
        env["GLOO_SOCKET_IFNAME"] = "lo"
    own = {"RAY_AUTH_TOKEN_PATH": str(token_file), "TMPDIR": str(temp), MARK: mark}
    return env | _TUNED | own


def make_temp_folder() -> Path:
    """A new private folder (0700) with a path short enough for Ray's sockets.

    Raises:
        ConfigError: There is nowhere to put one.
    """
    roots = dict.fromkeys([tempfile.gettempdir(), "/tmp"])  # noqa: S108 (made private, random name)
    for root in roots:
        if len(root.encode()) + len("/octad-xxxxxxxx") + _RAY_SOCKET_PATH > _MAX_SOCKET_PATH:
            continue
        try:
            return Path(tempfile.mkdtemp(prefix="octad-", dir=root))
        except OSError:
            continue
    raise ConfigError(
        f"no temporary folder with a short enough path can be made in {', '.join(roots)}",
        where="TMPDIR",
        hint="set TMPDIR to a folder with a path of at most 15 bytes",
    )


def _head_options(ports: PortBlock) -> list[str]:
    return [
        "--head",
        f"--port={ports.gcs}",
        "--include-dashboard=true",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={ports.dashboard}",
        f"--ray-client-server-port={ports.client_server}",
    ]
