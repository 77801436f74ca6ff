from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from octad.clusters import _jobs
from octad.clusters._api import RayApi
from octad.clusters._jobs import RayJobs
from octad.errors import ConfigError, ConflictError, PackageError, UnreachableError
from octad.ports.clusters import JobRequest

URI = "gcs://_ray_pkg_0123456789abcdef.zip"
REQUEST = JobRequest(
    submission_id="r1-pretrain-1",
    entrypoint="python jobs/pretrain.py --order 'file:///a b'",
    package_uri=URI,
    env={"RAY_ADDRESS": "10.0.0.1:6379"},
    metadata={"octad_run": "r1"},
)


@pytest.fixture
def jobs(dashboard: Any) -> Iterator[RayJobs]:
    api = RayApi(dashboard.address, cluster="alpha", token_file=None)
    yield RayJobs(api)
    api.close()


def test_a_package_is_there_once_it_was_put(dashboard: Any, jobs: RayJobs) -> None:
    assert not jobs.has_package(URI)
    jobs.put_package(URI, b"zip")
    jobs.put_package(URI, b"zip")
    assert jobs.has_package(URI)
    assert dashboard.packages == {"_ray_pkg_0123456789abcdef.zip": b"zip"}


def test_a_package_that_ray_would_not_take_is_not_sent(
    dashboard: Any, jobs: RayJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_jobs, "MAX_PACKAGE_BYTES", 1024**2)
    with pytest.raises(PackageError, match=r"has 2\.0 MiB; Ray takes at most 1"):
        jobs.put_package(URI, bytes(2 * 1024**2))
    assert dashboard.calls == []


@pytest.mark.parametrize("uri", ["", "x.zip", "gcs://", "gcs://../x"])
def test_what_is_no_package_uri(jobs: RayJobs, uri: str) -> None:
    with pytest.raises(ConfigError):
        jobs.has_package(uri)


def test_a_job_is_sent_as_it_was_asked_for(dashboard: Any, jobs: RayJobs) -> None:
    jobs.submit(REQUEST)
    sent = dashboard.jobs["r1-pretrain-1"]
    assert sent["entrypoint"] == REQUEST.entrypoint
    assert sent["runtime_env"] == {
        "working_dir": URI,
        "env_vars": {"RAY_ADDRESS": "10.0.0.1:6379"},
    }
    assert sent["metadata"] == {"octad_run": "r1"}
    assert "entrypoint_resources" not in sent


def test_a_driver_that_holds_cards_asks_for_the_clusters_resource(dashboard: Any) -> None:
    api = RayApi(dashboard.address, cluster="alpha", token_file=None)
    request = JobRequest("r1-train-1", "python x.py", "", cards=4)
    RayJobs(api, "NPU").submit(request)
    assert dashboard.jobs["r1-train-1"]["entrypoint_resources"] == {"NPU": 4}
    assert "working_dir" not in dashboard.jobs["r1-train-1"]["runtime_env"]


def test_further_packages_go_along(dashboard: Any, jobs: RayJobs) -> None:
    modules = ("gcs://_ray_pkg_1.zip", "gcs://_ray_pkg_2.zip")
    jobs.submit(JobRequest("r1-j-1", "true", "", py_modules=modules, pip={"packages": ["a"]}))
    sent = dashboard.jobs["r1-j-1"]["runtime_env"]
    assert sent["py_modules"] == list(modules)
    assert sent["pip"] == {"packages": ["a"]}


def test_an_id_that_is_known_is_refused_and_its_job_left_alone(
    dashboard: Any, jobs: RayJobs
) -> None:
    jobs.submit(REQUEST)
    before = dict(dashboard.jobs["r1-pretrain-1"])
    with pytest.raises(ConflictError, match="r1-pretrain-1"):
        jobs.submit(REQUEST)
    assert dashboard.jobs["r1-pretrain-1"] == before


def test_a_node_without_its_agent_is_tried_later(dashboard: Any, jobs: RayJobs) -> None:
    dashboard.no_agent = True
    with pytest.raises(UnreachableError, match="No available agent"):
        jobs.submit(REQUEST)


def test_what_could_never_start_is_not_sent(dashboard: Any, jobs: RayJobs) -> None:
    long = JobRequest("r1-s-1", "python x.py", "", env={"FILES": "x" * 200_000})
    with pytest.raises(ConfigError, match=r"environment variable FILES .* 200006 bytes"):
        jobs.submit(long)
    many = JobRequest("r1-s-1", "true", "", env={f"K{i}": "v" * 500 for i in range(5000)})
    with pytest.raises(ConfigError, match="the environment of job"):
        jobs.submit(many)
    with pytest.raises(ConfigError, match="the command line"):
        jobs.submit(JobRequest("r1-s-1", "echo " + "é" * 70_000, ""))
    assert dashboard.calls == []


def test_status(dashboard: Any, jobs: RayJobs) -> None:
    assert jobs.status("r1-pretrain-1") is None
    jobs.submit(REQUEST)
    status = jobs.status("r1-pretrain-1")
    assert status is not None
    assert (status.state, status.is_terminal) == ("PENDING", False)
    assert status.metadata == {"octad_run": "r1"}
    dashboard.jobs["r1-pretrain-1"].update(status="FAILED", message=None)
    status = jobs.status("r1-pretrain-1")
    assert status is not None
    assert (status.state, status.message, status.is_terminal) == ("FAILED", "", True)


def test_a_status_that_says_nothing_is_no_state(dashboard: Any, jobs: RayJobs) -> None:
    dashboard.jobs["r1-pretrain-1"] = {"status": "LOST"}
    with pytest.raises(UnreachableError):
        jobs.status("r1-pretrain-1")


@pytest.mark.parametrize("text", [b"", "step 1 日本\n".encode(), b"\xff\xfe raw\n", b"50%\r100%\n"])
def test_a_log_comes_back_byte_by_byte(dashboard: Any, jobs: RayJobs, text: bytes) -> None:
    dashboard.jobs["r1-s-1"] = {"status": "RUNNING", "driver_node_id": "ab12"}
    dashboard.logs["r1-s-1"] = text
    assert jobs.log("r1-s-1") == text


def test_what_is_not_known_has_no_log_and_can_be_stopped(dashboard: Any, jobs: RayJobs) -> None:
    assert jobs.log("nothing") == b""
    jobs.stop("nothing")
    jobs.submit(REQUEST)
    jobs.stop("r1-pretrain-1")
    assert dashboard.stopped == ["r1-pretrain-1"]
