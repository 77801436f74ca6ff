"""Ray's own client against a control plane: what it submits becomes a run, and is told in its words."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest
from ray.job_submission import JobStatus, JobSubmissionClient

from octad.control import ray_packages, rayjobs
from octad.control.server import ControlPlane, read_spec
from octad.spec.home import Home

if TYPE_CHECKING:
    from tests.unit.control.fake_cluster import FakeCluster

# Ray's client tells aiohttp what aiohttp does not like to be told any more.
pytestmark = pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")

SECRET = "s3cr3t-of-the-user"


def until(is_done: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_done():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


class Served:
    """A control plane that listens, on one fake cluster."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.headers = {"Authorization": f"Bearer {plane.token}"}
        self._thread = threading.Thread(target=plane.serve, args=(self._listener,))
        self._http = httpx.Client(base_url=self.url, headers=self.headers, trust_env=False)

    def __enter__(self) -> Served:
        self._thread.start()
        until(self.plane.home.endpoint.exists, "it does not listen")
        return self

    def __exit__(self, *_error: object) -> None:
        self.plane.shut_down(ends_fleet=False)
        self._thread.join(30)
        self._listener.close()
        self._http.close()

    @property
    def cluster(self) -> FakeCluster:
        return cast("FakeCluster", self.plane.fleet.provider("alpha"))

    def client(self) -> JobSubmissionClient:
        return JobSubmissionClient(self.url, headers=dict(self.headers))

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._http.request(method, path, **options)

    def running(self, job: str) -> dict[str, Any]:
        """The job as its cluster has it, once it runs there."""
        client = self.client()
        until(lambda: client.get_job_status(job) == JobStatus.RUNNING, "it does not start")
        driver = client.get_job_info(job).driver_info
        assert driver is not None
        with self.cluster.state() as state:
            return {"id": driver.id, **state["jobs"][driver.id]}

    def say(self, job: str, log: str) -> None:
        with self.cluster.state() as state:
            state["jobs"][job]["log"] = log


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, fake_path: Path, config_maker: Callable[..., str]
) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(fake_path))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_JOB_HEADERS"):
            patch.delenv(name, raising=False)
        patch.setattr(rayjobs, "_FOLLOW_EVERY_S", 0.02)
        home = Home(tmp_path_factory.mktemp("home"))
        home.config.write_text(config_maker(home.root, behaviour="manual"))
        with Served(ControlPlane(home, read_spec(home))) as made:
            with made.cluster.state() as state:
                state["up"] = True
            yield made


async def followed(client: JobSubmissionClient, job: str, heard: list[str]) -> None:
    async for text in client.tail_job_logs(job):
        heard.append(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "mine"
    made.mkdir()
    (made / "train.py").write_text("print('hello')\n")
    return made


def test_a_job_is_a_run_from_submission_to_its_end(served: Served, folder: Path) -> None:
    client = served.client()
    assert client.get_version() == "4"
    job = client.submit_job(
        entrypoint="python train.py",
        submission_id="First_1",
        runtime_env={"working_dir": str(folder), "env_vars": {"MY_TOKEN": SECRET}},
        metadata={"octad.title": "my first", "why": "to see"},
        entrypoint_resources={"sim": 2},
    )
    assert job == "First_1"
    sent = served.running(job)
    assert sent["cards"] == 2
    assert sent["env"]["MY_TOKEN"] == SECRET
    assert sent["env"]["RAY_ADDRESS"] == "fake:1"
    assert "PYTHONPATH" not in sent["env"]
    assert shlex.split(sent["entrypoint"])[1:4] == ["-m", "octad.stages", "job"]
    packages = served.cluster.home / "packages"
    with zipfile.ZipFile(packages / sent["package"].rpartition("/")[2]) as archive:
        assert archive.namelist() == ["train.py"]
    (own,) = sent["py_modules"]
    with zipfile.ZipFile(packages / own.rpartition("/")[2]) as archive:
        assert {"octad/stages/__main__.py", "octad/stages/job.py"} <= set(archive.namelist())
    served.say(sent["id"], "hello \udcff\n")
    assert client.get_job_logs(job) == "hello \N{REPLACEMENT CHARACTER}\n"
    served.cluster.succeed(sent["id"])
    until(lambda: client.get_job_status(job) == JobStatus.SUCCEEDED, "it does not end")
    info = client.get_job_info(job)
    assert info.start_time is not None
    assert info.end_time is not None
    assert info.start_time <= info.end_time
    assert info.metadata is not None
    assert info.metadata["why"] == "to see"
    assert info.metadata["octad.cluster"] == "alpha"
    run = served.plane.services.runs.view(info.metadata["octad.run"])
    assert (run.title, run.pipeline, run.state) == ("my first", "ray-job", "succeeded")
    assert job in [listed.submission_id for listed in client.list_jobs()]
    assert client.get_job_info(run.id).submission_id == job


def test_values_of_the_environment_are_told_to_nobody(served: Served, folder: Path) -> None:
    client = served.client()
    job = client.submit_job(
        entrypoint="true",
        runtime_env={"env_vars": {"HF_TOKEN": "hf_" + SECRET}, "working_dir": str(folder)},
    )
    served.running(job)
    info = client.get_job_info(job)
    assert info.runtime_env is not None
    assert info.runtime_env["env_vars"] == {"HF_TOKEN": "<redacted>"}
    assert info.metadata is not None
    run = served.plane.services.runs.view(info.metadata["octad.run"])
    assert SECRET not in run.model_dump_json()
    assert run.config["env_vars"] == ["HF_TOKEN"]
    for path in (served.plane.home.root / "store").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    client.stop_job(job)
    assert served.plane.services.ray_jobs.extras(run.id) is not None
    client.delete_job(job)
    extras = served.plane.services.ray_jobs.extras(run.id)
    assert extras is not None
    assert extras.env == {}


def test_one_id_is_one_job(served: Served) -> None:
    client = served.client()
    first = client.submit_job(entrypoint="true", submission_id="one-job")
    assert client.submit_job(entrypoint="true", submission_id="one-job") == first == "one-job"
    assert served.plane.services.runs.view("one-job").id == "one-job"
    with pytest.raises(RuntimeError, match="409: Job with submission_id one-job already exists"):
        client.submit_job(entrypoint="false", submission_id="one-job")
    client.stop_job("one-job")
    client.delete_job("one-job")
    with pytest.raises(RuntimeError, match="already exists"):
        client.submit_job(entrypoint="true", submission_id="one-job")


def test_a_hundred_calls_with_one_id_make_one_job(served: Served) -> None:
    answers: list[str] = []
    body = {"entrypoint": "true", "submission_id": "hundred"}

    def submit() -> None:
        answers.extend(served.plane.services.ray_jobs.submit(body) for _ in range(10))

    threads = [threading.Thread(target=submit) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["hundred"] * 100
    page = served.plane.services.runs.page(limit=500, before=None, sweep=None)
    assert [run.id for run in page.runs].count("hundred") == 1
    served.client().stop_job("hundred")


def test_a_job_that_waits_says_why(served: Served) -> None:
    client = served.client()
    held = client.submit_job(entrypoint="true", entrypoint_resources={"card": 8})
    also = client.submit_job(entrypoint="true", metadata={"octad.cards": "8"})
    sent = served.running(also)
    assert sent["cards"] == 0  # they are for what the program starts
    job = client.submit_job(entrypoint="true", entrypoint_resources={"card": 1})
    until(lambda: "needs 1 card; alpha has 0 free" in str(client.get_job_info(job).message), "why")
    assert client.get_job_status(job) == JobStatus.PENDING
    for one in (job, held, also):
        assert client.stop_job(one)
        assert client.get_job_status(one) == JobStatus.STOPPED
        assert not client.stop_job(one)
    heard: list[str] = []
    asyncio.run(followed(client, job, heard))
    assert heard == []
    assert client.get_job_logs(job) == ""


def test_what_is_not_there_and_what_still_runs(served: Served) -> None:
    client = served.client()
    for call in (client.get_job_info, client.get_job_logs, client.stop_job, client.delete_job):
        with pytest.raises(RuntimeError, match="404: Job nope does not exist"):
            call("nope")
    job = client.submit_job(entrypoint="true")
    with pytest.raises(RuntimeError, match="in a non-terminal state"):
        client.delete_job(job)
    client.stop_job(job)
    assert client.delete_job(job)
    with pytest.raises(RuntimeError, match="404"):
        client.get_job_status(job)
    assert job not in [listed.submission_id for listed in client.list_jobs()]


def test_a_log_is_followed_to_the_end_of_the_job(served: Served) -> None:
    client = served.client()
    job = client.submit_job(entrypoint="true")
    sent = served.running(job)
    served.say(sent["id"], "one\n\udcff\n")
    heard: list[str] = []
    thread = threading.Thread(target=lambda: asyncio.run(followed(client, job, heard)))
    thread.start()
    start = "one\n\N{REPLACEMENT CHARACTER}\n"
    until(lambda: "".join(heard) == start, "nothing is heard")
    served.say(sent["id"], "one\n\udcff\ntwo é " + "x" * 6_000_000 + "\n")
    served.cluster.succeed(sent["id"])
    thread.join(30)
    assert not thread.is_alive()
    assert "".join(heard) == start + "two é " + "x" * 6_000_000 + "\n"
    # Whoever comes back hears it all again.
    again: list[str] = []
    asyncio.run(followed(client, job, again))
    assert "".join(again) == "".join(heard)


def test_packages_of_pip_are_left_to_the_cluster(served: Served) -> None:
    client = served.client()
    job = client.submit_job(entrypoint="true", runtime_env={"pip": ["six==1.17.0"]})
    sent = served.running(job)
    assert sent["pip"]["packages"] == ["six==1.17.0"]
    assert shlex.split(sent["entrypoint"])[0] == "python"  # the one that Ray makes for the job
    client.stop_job(job)


def test_a_client_that_leaves_is_no_longer_served(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = served.client()
    job = client.submit_job(entrypoint="true")
    served.running(job)
    has_ended = threading.Event()
    follow = rayjobs.RayJobs.follow

    async def watched(self: rayjobs.RayJobs, name: str) -> AsyncIterator[str]:
        try:
            async for text in follow(self, name):
                yield text
        finally:
            has_ended.set()

    monkeypatch.setattr(rayjobs.RayJobs, "follow", watched)

    async def leave() -> None:
        async for _ in client.tail_job_logs(job):
            break

    asyncio.run(leave())
    assert has_ended.wait(30)
    client.stop_job(job)


def test_following_wants_the_token_and_a_job(served: Served) -> None:
    wrong = served.client()
    wrong._headers = {"Authorization": "Bearer wrong"}
    with pytest.raises(Exception, match="401"):
        asyncio.run(followed(wrong, "nope", []))
    with pytest.raises(Exception, match="404"):
        asyncio.run(followed(served.client(), "nope", []))


def test_the_token_is_wanted(served: Served) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(Exception, match="Authentication required"):
            JobSubmissionClient(served.url, headers=headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"User-Agent": "Mozilla/5.0"},
        {"Origin": "http://127.0.0.1:8470"},
        {"Origin": "http://evil.example"},
        {"Referer": "http://127.0.0.1/"},
        {"Sec-Fetch-Site": "same-origin"},
    ],
)
def test_browsers_cannot_write_even_with_the_token(served: Served, headers: dict[str, str]) -> None:
    body = {"entrypoint": "true", "submission_id": "from-a-browser"}
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/api/jobs/", {"json": body}),
        ("POST", "/api/jobs/nope/stop", {}),
        ("DELETE", "/api/jobs/nope", {}),
        ("PUT", f"/api/packages/gcs/_ray_pkg_{'a' * 32}.zip", {"content": b"x"}),
    ]
    for method, path, options in calls:
        status = served.call(method, path, headers=headers, **options).status_code
        assert status in {403, 405}, (method, path)
    assert served.call("GET", "/api/jobs/from-a-browser").status_code == 404


WORDS = [
    ({"entrypoint": None}, "entrypoint: a value is needed"),
    ({"entrypoint": ""}, "entrypoint: is empty"),
    ({"entrypoint": ["python"]}, "entrypoint"),
    ({"entrypoint": "a\0b"}, "NUL"),
    ({"entrypoint": "a\r\nb"}, "CR LF"),
    ({"entrypoint": "x" * 70_000}, "entrypoint: has more than"),
    ({"entrypoint": "\ud800"}, "not JSON"),
    ({"entripoint": "true"}, "did you mean 'entrypoint'"),
    ({"submission_id": "a/b"}, "submission_id: 'a/b' cannot be"),
    ({"submission_id": "../x"}, "submission_id"),
    ({"submission_id": "a..b"}, "submission_id"),
    ({"submission_id": ""}, None),
    ({"submission_id": "x" * 101}, "submission_id"),
    ({"submission_id": "-rf"}, "submission_id"),
    ({"submission_id": "名"}, "submission_id"),
    ({"entrypoint_num_gpus": 0}, "entrypoint_num_gpus: an entrypoint runs on one node"),
    ({"entrypoint_num_gpus": -1}, "holds 1 to 8 cards, not -1"),
    ({"entrypoint_num_gpus": 9}, "holds 1 to 8 cards, not 9"),
    ({"entrypoint_num_gpus": 0.5}, "given whole, not 0.5"),
    ({"entrypoint_num_gpus": True}, "entrypoint_num_gpus"),
    ({"entrypoint_num_gpus": "2"}, "entrypoint_num_gpus"),
    ({"entrypoint_num_gpus": 10**400}, "entrypoint_num_gpus"),
    ({"entrypoint_num_gpus": 2}, "alpha's sim cards cannot be used as GPUs"),
    ({"entrypoint_resources": {"NPU": 8}}, "cannot be used as NPUs"),
    ({"entrypoint_resources": {"TPU": 8}}, "entrypoint_resources.TPU: no card"),
    ({"entrypoint_resources": {"sim": 1, "card": 1}}, "say it once"),
    ({"entrypoint_num_cpus": 2}, "entrypoint_num_cpus: octad gives whole cards"),
    ({"entrypoint_memory": 2**30}, "entrypoint_memory"),
    ({"entrypoint_label_selector": {"a": "b"}}, "entrypoint_label_selector"),
    ({"metadata": {"octad.cards": "0"}}, "metadata.octad.cards: 0 cards cannot be"),
    ({"metadata": {"octad.cards": "12"}}, "use 8 or 16"),
    ({"metadata": {"octad.cards": "32"}}, "32 cards are asked for"),
    ({"metadata": {"octad.cards": "NaN"}}, "metadata.octad.cards"),
    ({"metadata": {"octad.cluster": "no-such"}}, "no cluster is called 'no-such'"),
    ({"metadata": {"octad.cluster": "../x"}}, "metadata.octad.cluster"),
    ({"metadata": {"octad.retries": "101"}}, "metadata.octad.retries"),
    ({"metadata": {"octad.titel": "x"}}, "did you mean 'title'"),
    ({"metadata": {"octad.title": "a\nb"}}, "metadata.octad.title"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"metadata": {"a": "x" * 70_000}}, "metadata: has more than"),
    ({"runtime_env": []}, "runtime_env"),
    ({"runtime_env": {"conda": "x"}}, "runtime_env.conda: octad cannot do this"),
    ({"runtime_env": {"env_var": {}}}, "did you mean 'env_vars'"),
    ({"runtime_env": {"container": {}}}, "runtime_env.container"),
    ({"runtime_env": {"env_vars": {"A": 1}}}, "runtime_env.env_vars.A"),
    ({"runtime_env": {"env_vars": {"A-B": SECRET}}}, "'A-B' is not the name"),
    ({"runtime_env": {"env_vars": {"A": f"{SECRET}\0"}}}, "runtime_env.env_vars.A"),
    ({"runtime_env": {"env_vars": {"OCTAD_RUN": SECRET}}}, "OCTAD_RUN: is set by octad"),
    ({"runtime_env": {"env_vars": {"A": SECRET * 5000}}}, "runtime_env.env_vars: has more than"),
    ({"runtime_env": {"working_dir": f"https://u:{SECRET}@h/a.zip"}}, "an address of 'https://'"),
    ({"runtime_env": {"working_dir": "file:///etc/passwd.zip"}}, "an address of 'file://'"),
    ({"runtime_env": {"working_dir": 7}}, "runtime_env.working_dir"),
    ({"runtime_env": {"working_dir": f"gcs://_ray_pkg_{'0' * 40}.zip"}}, "was not uploaded"),
    ({"runtime_env": {"working_dir": "gcs://_ray_pkg_../../x.zip"}}, "runtime_env.working_dir"),
    ({"runtime_env": {"py_modules": ["s3://b/a.zip"]}}, "runtime_env.py_modules.0"),
    ({"runtime_env": {"py_modules": "x"}}, "must be a list"),
    ({"runtime_env": {"pip": "reqs.txt"}}, "runtime_env.pip"),
    ({"runtime_env": {"pip": {"packages": ["a"], "conda": 1}}}, "runtime_env.pip.conda"),
]


@pytest.mark.parametrize(("changed", "words"), WORDS, ids=range(len(WORDS)))
def test_what_cannot_be_is_refused_in_one_line(
    served: Served, changed: dict[str, Any], words: str | None
) -> None:
    body = {"submission_id": "bad", "entrypoint": "true"} | changed
    answer = served.call("POST", "/api/jobs/", content=json.dumps(body))
    if words is None:
        assert answer.status_code == 200
        served.client().stop_job(answer.json()["submission_id"])
        return
    assert 400 <= answer.status_code < 500
    assert words in answer.text
    assert "\n" not in answer.text
    assert SECRET not in answer.text
    assert served.call("GET", "/api/jobs/bad").status_code == 404


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"{", 422),
        (b"[]", 422),
        (b"\xff\xfe", 422),
        (b'{"entrypoint": "true", "entrypoint_num_gpus": NaN}', 422),
        (b'{"entrypoint": "true", "entrypoint_num_gpus": 1e999}', 422),
        (b"[" * 100_000, 422),
        (b" " * (1024**2 + 1), 413),
    ],
)
def test_what_is_no_body(served: Served, content: bytes, status: int) -> None:
    assert served.call("POST", "/api/jobs/", content=content).status_code == status


def test_a_declared_gigabyte_is_refused_before_it_comes(served: Served) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    for line in ("POST /api/jobs/", f"PUT /api/packages/gcs/_ray_pkg_{'b' * 32}.zip"):
        with socket.create_connection((host, int(port)), timeout=30) as sent:
            head = f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1073741824\r\n"
            token = served.headers["Authorization"]
            sent.sendall(f"{head}Authorization: {token}\r\n\r\n".encode())
            assert sent.recv(1024).startswith(b"HTTP/1.1 413")


def zipped(*names: str, link: bool = False, content: bytes = b"x") -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o120777 if link else 0o100644) << 16
            archive.writestr(info, content)
    return data.getvalue()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"no zip", "cannot be unpacked"),
        (zipped("../out.py"), "leads out"),
        (zipped("/etc/passwd"), "leads out"),
        (zipped("a", link=True), "a link"),
        (zipped("octad/errors.py"), "would hide octad"),
        (zipped("bomb", content=b"\0" * 64 * 1024**2), "unpacks from"),
        (zipped("a.py", content=b"y" * 5000)[:-300], "cannot be unpacked"),
    ],
)
def test_a_package_that_must_not_be_unpacked_is_refused(
    served: Served, data: bytes, words: str
) -> None:
    path = f"/api/packages/gcs/_ray_pkg_{'c' * 32}.zip"
    answer = served.call("PUT", path, content=data)
    assert answer.status_code == 413
    assert words in answer.text
    assert served.call("GET", path).status_code == 404


def test_a_package_has_a_name_of_rays(served: Served) -> None:
    for place in ("gcs/x.zip", "gcs/_ray_pkg_..%2F..%2Fx.zip", "s3/_ray_pkg_0123456789abcdef.zip"):
        answer = served.call("PUT", f"/api/packages/{place}", content=zipped("a.py"))
        assert 400 <= answer.status_code < 500, place
    assert ray_packages.own_package() == ray_packages.own_package()


def ray(served: Served, *words: str) -> subprocess.CompletedProcess[str]:
    headers = json.dumps(served.headers)
    return subprocess.run(
        [str(Path(sys.executable).with_name("ray")), "job", *words],
        env={**os.environ, "RAY_JOB_HEADERS": headers, "RAY_ADDRESS": served.url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.long
def test_the_command_of_ray_itself(served: Served, folder: Path) -> None:
    words = ["--submission-id", "by-hand", "--working-dir", str(folder), "--no-wait"]
    done = ray(served, "submit", *words, "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert "Job 'by-hand' submitted successfully" in done.stdout
    again = ray(served, "submit", *words, "--", "python", "other.py")
    assert again.returncode != 0
    assert "already exists" in again.stderr
    sent = served.running("by-hand")
    served.say(sent["id"], "by hand {}\n")
    assert "by hand {}" in ray(served, "logs", "by-hand").stdout
    assert "by-hand" in ray(served, "list").stdout
    assert "was stopped" in ray(served, "stop", "by-hand").stdout
    assert "deleted successfully" in ray(served, "delete", "by-hand").stdout
    done_status = ray(served, "status", "by-hand")
    assert done_status.returncode != 0
    assert "does not exist" in done_status.stderr

    answers: list[subprocess.CompletedProcess[str]] = []
    words = ["--submission-id", "followed", "--entrypoint-resources", '{"sim": 2}']
    thread = threading.Thread(
        target=lambda: answers.append(ray(served, "submit", *words, "--", "true"))
    )
    thread.start()
    until(lambda: served.call("GET", "/api/jobs/followed").status_code == 200, "not sent")
    sent = served.running("followed")
    served.say(sent["id"], f"log of {sent['id']}\nline of it\n")
    served.cluster.succeed(sent["id"])
    thread.join(60)
    assert answers[0].returncode == 0, answers[0].stderr
    assert "line of it" in answers[0].stdout
    assert "Job 'followed' succeeded" in answers[0].stdout
