"""A real Ray cluster on this machine: up, used, killed, up again, down."""

from __future__ import annotations

import io
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from octad.clusters import _processes, _records, local
from octad.clusters.existing import build as build_existing
from octad.clusters.local import LocalCluster, build
from octad.errors import AccessError, ConflictError
from octad.ports.clusters import JobRequest, JobStatus
from octad.spec.clusters import CardSpec, ClusterSpec

pytestmark = [pytest.mark.ray, pytest.mark.long]

URI = "gcs://_ray_pkg_0123456789abcdef0123456789abcdef.zip"
SIM = CardSpec(kind="sim", name="sim")
# Prints what a job sees, a byte that is no text, and leaves children behind.
SEE = """
import os, subprocess, sys, time
import ray

ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
node = ray.remote(num_cpus=0.1, resources={"card": 1})(lambda: os.environ["OCTAD_NODE"])
print("cards", ray.cluster_resources()["card"], "python", sys.executable)
print("node", ray.get(node.remote()), "greeting", os.environ["GREETING"])
sys.stdout.flush()
sys.stdout.buffer.write(b"\\xff\\n")
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(sleep, start_new_session=True)
"""
WAIT = "import time; print('waiting', flush=True); time.sleep(600)"


def wait_for(is_done: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_done():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def package() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("jobs/see.py", SEE)
        archive.writestr("jobs/wait.py", WAIT)
    return data.getvalue()


def ended(cluster: LocalCluster, job: str) -> JobStatus:
    def is_terminal() -> bool:
        status = cluster.jobs.status(job)
        return status is not None and status.is_terminal

    wait_for(is_terminal, 60, f"job {job} does not end")
    status = cluster.jobs.status(job)
    assert status is not None
    return status


def build_cluster(home: Path, nodes: int = 1) -> LocalCluster:
    settings = {"nodes": nodes, "object_store_mib": 80}
    return build(ClusterSpec(name="alpha", kind="local", card=SIM, settings=settings), home)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    # A proxy that leads nowhere, and a token that is somebody else's.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "not-this-one")
    cluster = build_cluster(tmp_path / "alpha")
    try:
        yield cluster
    finally:
        cluster.stop()


def request(cluster: LocalCluster, job: str, script: str) -> JobRequest:
    return JobRequest(
        submission_id=job,
        entrypoint=f"python jobs/{script}.py",
        package_uri=URI,
        env={**cluster.job_env, "GREETING": "a b"},
        metadata={"octad_run": "r1"},
    )


def test_a_cluster_is_used_killed_brought_back_and_ended(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    cluster.start()
    view = cluster.observe()
    assert (view.state, view.reason, view.cards, view.cards_free) == ("up", "", 8, 8)
    token = tmp_path / "alpha" / "ray-token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    temps = [node.temp for node in _records.read(tmp_path / "alpha" / "nodes.json").nodes]
    assert [stat.S_IMODE(Path(temp).stat().st_mode) for temp in temps] == [0o700]

    use(cluster)
    refuse_a_wrong_token(cluster, tmp_path)
    adopt_from_another_process(cluster, tmp_path)
    kill_and_bring_back(cluster, tmp_path)

    temps = [node.temp for node in _records.read(tmp_path / "alpha" / "nodes.json").nodes]
    cluster.stop()
    assert _processes.marked(cluster.mark) == []
    assert [temp for temp in temps if Path(temp).exists()] == []
    assert cluster.observe().state == "down"
    cluster.stop()


def use(cluster: LocalCluster) -> None:
    jobs = cluster.jobs
    assert not jobs.has_package(URI)
    jobs.put_package(URI, package())
    assert jobs.has_package(URI)
    jobs.submit(request(cluster, "r1-see-1", "see"))
    with pytest.raises(ConflictError, match="r1-see-1"):
        jobs.submit(request(cluster, "r1-see-1", "see"))
    status = ended(cluster, "r1-see-1")
    log = jobs.log("r1-see-1")
    assert status.state == "SUCCEEDED", log.decode(errors="replace")
    assert status.metadata["octad_run"] == "r1"
    # The interpreter of the cluster may be known by several names in one folder.
    assert f"cards 8.0 python {Path(sys.executable).parent}/".encode() in log
    assert f"node {cluster.mark}alpha-0/ greeting a b\n".encode() in log
    assert b"\xff\n" in log
    assert jobs.status("r1-other-1") is None


def refuse_a_wrong_token(cluster: LocalCluster, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong-token"
    wrong.write_text("wrong")
    address = cluster.observe().address
    for token_file, says in ((str(wrong), "refuses the token"), (None, "wants a token")):
        settings = {"address": address, "token_file": token_file}
        spec = ClusterSpec(name="beta", kind="existing", card=SIM, settings=settings)
        with pytest.raises(AccessError, match=says):
            build_existing(spec, tmp_path).start()
    settings = {"address": address, "token_file": str(tmp_path / "alpha" / "ray-token")}
    right = build_existing(
        ClusterSpec(name="beta", kind="existing", card=SIM, settings=settings), tmp_path
    )
    right.start()
    assert right.observe().cards == 8


def adopt_from_another_process(cluster: LocalCluster, tmp_path: Path) -> None:
    before = _records.read(tmp_path / "alpha" / "nodes.json")
    build_cluster(tmp_path / "alpha").start()
    assert _records.read(tmp_path / "alpha" / "nodes.json") == before
    assert cluster.jobs.status("r1-see-1") is not None


def kill_and_bring_back(cluster: LocalCluster, tmp_path: Path) -> None:
    jobs = cluster.jobs
    jobs.submit(request(cluster, "r1-wait-1", "wait"))
    wait_for(lambda: b"waiting\n" in jobs.log("r1-wait-1"), 60, "the job does not start")
    head = _records.read(tmp_path / "alpha" / "nodes.json").nodes[0]
    os.kill(head.pid, signal.SIGKILL)
    wait_for(lambda: cluster.observe().state == "down", 10, "the loss is not seen")
    assert "alpha-0 is gone" in cluster.observe().reason
    build_cluster(tmp_path / "alpha").start()
    assert cluster.observe().state == "up"
    # What it knew is lost with it, and what it ran is ended.
    assert cluster.jobs.status("r1-wait-1") is None
    running = " ".join(" ".join(p.cmdline()) for p in _processes.marked(cluster.mark))
    assert "jobs/wait.py" not in running
    assert not Path(head.temp).exists()


def start_in_a_process_that_is_killed(home: Path, nodes: int) -> None:
    """What a control plane does whose end is `kill -9`."""
    code = f"""
import os
from pathlib import Path
from octad.clusters.local import build
from octad.spec.clusters import CardSpec, ClusterSpec
settings = {{"nodes": {nodes}, "object_store_mib": 80}}
card = CardSpec(kind="sim", name="sim")
build(ClusterSpec(name="alpha", kind="local", card=card, settings=settings), Path({str(home)!r})).start()
os.kill(os.getpid(), 9)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    starter = subprocess.run([sys.executable, "-c", code], env=env, check=False)
    assert starter.returncode == -signal.SIGKILL


def test_a_lost_node_is_replaced_while_work_on_the_other_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = build_cluster(tmp_path / "alpha", nodes=2)
    foreign = subprocess.Popen(
        [sys.executable, "-c", WAIT, "raylet", "gcs_server"], stdout=subprocess.DEVNULL
    )
    try:
        start_in_a_process_that_is_killed(tmp_path / "alpha", nodes=2)
        assert cluster.observe().cards == 16
        jobs = cluster.jobs
        jobs.put_package(URI, package())
        jobs.submit(request(cluster, "r1-wait-1", "wait"))
        record = _records.read(tmp_path / "alpha" / "nodes.json")
        # It hangs: its processes live, and Ray gives it up.
        for process in _processes.marked(f"{cluster.mark}alpha-1/"):
            process.suspend()
        wait_for(lambda: cluster.observe().reason == "without node alpha-1", 60, "not seen")
        assert [n.is_alive for n in cluster.observe().nodes] == [True, False]
        # However young it is: it will not come any more.
        monkeypatch.setattr(local, "_PATIENCE_S", 0.0)
        cluster.start()
        view = cluster.observe()
        assert (view.state, view.reason, view.cards) == ("up", "", 16)
        status = jobs.status("r1-wait-1")
        assert status is not None
        assert not status.is_terminal
        assert _records.read(tmp_path / "alpha" / "nodes.json").nodes[0] == record.nodes[0]
    finally:
        cluster.stop()
        survives = foreign.poll() is None
        foreign.kill()
        foreign.wait()
    assert survives
    assert _processes.marked(cluster.mark) == []
    left = Path(tempfile.gettempdir())
    assert not [n for n in record.nodes if (left / Path(n.temp).name).exists()]
