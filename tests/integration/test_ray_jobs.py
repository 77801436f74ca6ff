"""Ray's own client through octad onto a real Ray cluster: what the program finds there."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.job_submission import JobStatus, JobSubmissionClient

from octad.spec.home import Home

pytestmark = [
    pytest.mark.ray,
    pytest.mark.long,
    pytest.mark.timeout(540),
    # Ray's client tells aiohttp what aiohttp does not like to be told any more.
    pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning"),
]

MAIN = "from octad.cli.main import main; raise SystemExit(main())"
SECRET = "hf_s3cr3t-of-the-user"
# The program, its tasks, and what both find: the folder, its modules, the environment, the package.
TRAIN = """
import os, pathlib, sys
import ray
import mine, other

def look():
    import mine, other
    return mine.NAME, other.NAME, pathlib.Path("data/numbers.txt").read_text(), os.environ["HF_TOKEN"]

assert look()[:3] == ("mine", "other", "1 2 3")
print("cards", os.environ["OCTAD_CARDS"], "secret", len(os.environ["HF_TOKEN"]), flush=True)
sys.stdout.buffer.write(b"\\xff\\n")
sys.stdout.flush()
ray.init(log_to_driver=False)
task = ray.remote(num_cpus=0.1, resources={"card": 1})(look)
assert ray.get([task.remote(), task.remote()]) == [look()] * 2
print("tasks too", flush=True)
"""


class Plane:
    """A control plane with a private folder, and one cluster of eight simulated cards."""

    def __init__(self, home: Home) -> None:
        self.home = home
        env = {k: v for k, v in os.environ.items() if not k.startswith(("OCTAD_", "RAY_"))}
        self.env = env | {"OCTAD_HOME": str(home.root), "RAY_AUTH_MODE": "token"}

    def __call__(self, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", MAIN, *arguments],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def client(self) -> JobSubmissionClient:
        url = json.loads(self.home.endpoint.read_text())["url"]
        token = self.home.token.read_text().strip()
        return JobSubmissionClient(url, headers={"Authorization": f"Bearer {token}"})


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    made = Plane(Home(tmp_path_factory.mktemp("octad") / "home"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_JOB_HEADERS"):
            patch.delenv(name, raising=False)
        try:
            made("up", "fleet=single", "tracker=none")
            yield made
        finally:
            made("down")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    (made / "data").mkdir(parents=True)
    (made / "jobs").mkdir()  # a name that octad's own code package has too
    (made / "train.py").write_text(TRAIN)
    (made / "mine.py").write_text("NAME = 'mine'\n")
    (made / "jobs" / "job.py").write_text("raise SystemExit('not this one')\n")
    (made / "data" / "numbers.txt").write_text("1 2 3")
    module = tmp_path / "other"
    module.mkdir()
    (module / "__init__.py").write_text("NAME = 'other'\n")
    return made


def ended(client: JobSubmissionClient, job: str) -> Any:
    deadline = time.monotonic() + 240
    while not client.get_job_status(job).is_terminal():
        assert time.monotonic() < deadline, client.get_job_info(job)
        time.sleep(0.3)
    return client.get_job_info(job)


async def followed(client: JobSubmissionClient, job: str) -> str:
    return "".join([text async for text in client.tail_job_logs(job)])


def test_a_program_and_its_tasks_find_what_was_sent(plane: Plane, folder: Path) -> None:
    client = plane.client()
    job = client.submit_job(
        entrypoint="python train.py",
        submission_id="Whole_1",
        runtime_env={
            "working_dir": str(folder),
            "py_modules": [str(folder.with_name("other"))],
            "env_vars": {"HF_TOKEN": SECRET},
        },
        metadata={"octad.cards": "2"},
    )
    log = asyncio.run(followed(client, job))
    info = ended(client, job)
    assert info.status == JobStatus.SUCCEEDED, (info.message, log)
    assert f"cards 2 secret {len(SECRET)}\n\N{REPLACEMENT CHARACTER}\n" in log
    assert log.endswith("tasks too\n")
    assert client.get_job_logs(job) == log
    for path in plane.home.root.rglob("*"):
        if path.is_file() and not path.name.startswith("octad.sqlite"):
            assert SECRET.encode() not in path.read_bytes(), path


def test_a_program_that_fails_and_one_that_is_stopped(plane: Plane) -> None:
    client = plane.client()
    failed = client.submit_job(entrypoint="echo so it is; exit 3")
    info = ended(client, failed)
    assert info.status == JobStatus.FAILED
    assert "exit code 3" in info.message
    assert "so it is" in client.get_job_logs(failed)
    stopped = client.submit_job(entrypoint="echo going; sleep 600")
    while "going" not in client.get_job_logs(stopped):
        time.sleep(0.3)
    assert client.stop_job(stopped)
    assert client.get_job_status(stopped) == JobStatus.STOPPED
