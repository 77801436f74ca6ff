"""Programs of the user's own, run by the real driver in its own process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.stages.conftest import LIMIT_S, Bench, until

from octad.spec.stages import MetricPoint
from octad.stages._script import check_line_ends
from octad.storage import artefacts

ALL_KINDS_OF_CHILDREN = """
import os, subprocess, sys, time
beat = [sys.executable, "-c", "import time\\nwhile True: time.sleep(0.05)"]
subprocess.Popen(beat)
subprocess.Popen(["setsid", *beat])
subprocess.Popen(["nohup", *beat], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
subprocess.Popen(beat, start_new_session=True, close_fds=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(beat[0], beat)
    os._exit(0)
os.wait()
"""
NUM_CHILDREN = 5


def marks() -> dict[int, bytes]:
    """Every living process that is marked as part of a program, and its mark.

    Tests that run beside this one have programs of their own.
    """
    ours = f"PYTEST_XDIST_WORKER={os.environ.get('PYTEST_XDIST_WORKER', '')}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            entries = (folder / "environ").read_bytes().split(b"\0")
            if "PYTEST_XDIST_WORKER" in os.environ and ours not in entries:
                continue
            for entry in entries:
                if entry.startswith(b"OCTAD_MARK=") and state != "Z":
                    found[int(folder.name)] = entry
        except OSError:
            continue
    return found


def test_what_was_typed_reaches_the_program_unchanged(bench: Bench) -> None:
    words = ["a b", "'", '"', ">", "|", "$HOME", "*", "line\nbreak", "", "ü", "-x=1", "\\"]
    dump = "import json,sys; print('ARGV' + json.dumps(sys.argv[1:]))"
    code, log = bench.run({"entrypoint": ["python", "-c", dump, *words]})
    assert code == 0, log
    line = next(line for line in log.splitlines() if line.startswith("ARGV"))
    assert json.loads(line[4:]) == words


def test_inputs_outputs_metrics_and_the_surroundings(bench: Bench, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_text("three words here")
    given = artefacts.publish_folder(bench.store, "in", "corpus", "dataset", corpus)
    (bench.folder / "own_code.py").write_text("FACTOR = 2\n")
    (bench.folder / "train.py").write_text(
        """
import json, os, pathlib, own_code
words = pathlib.Path(os.environ["OCTAD_INPUT_CORPUS"], "a.txt").read_text().split()
out = pathlib.Path(os.environ["OCTAD_OUTPUT_MY_NET"])
assert list(out.iterdir()) == []
(out / "net.json").write_text(json.dumps(len(words) * own_code.FACTOR))
pathlib.Path(os.environ["OCTAD_SCRATCH"], "x").write_text("x")
with open(os.environ["OCTAD_METRICS"], "a") as metrics:
    for step in (1, 2, 3):
        metrics.write(json.dumps({"step": step, "loss": 1 / step}) + "\\n")
    metrics.write("rubbish\\n")
print({k: os.environ[k] for k in ("OCTAD_RUN","OCTAD_STAGE","OCTAD_ATTEMPT","OCTAD_CARDS","MINE")})
"""
    )
    code, log = bench.run(
        {
            "entrypoint": ["python", "train.py"],
            "env": {"MINE": "a 'b' $c"},
            "inputs": {"corpus": "dataset"},
            "outputs": {"my-net": "weights"},
        },
        inputs={"corpus": given},
    )
    assert code == 0, log
    result = bench.result()
    (net,) = result.artefacts
    assert (net.name, net.type) == ("my-net", "weights")
    got = artefacts.fetch(bench.store, net, tmp_path / "got")
    assert (got / "net.json").read_text() == "6"
    assert result.metrics == {"loss": pytest.approx(1 / 3)}
    assert result.notes == ("1 lines of OCTAD_METRICS were no metrics: skipped",)
    raw = b"".join(bench.store.get(m.key) for m in bench.store.walk(bench.keys().metrics))
    assert [MetricPoint.parse(json.loads(line)).step for line in raw.splitlines()] == [1, 2, 3]
    progress = bench.progress()
    assert (progress.phase, progress.step, progress.notes) == ("done", 3, result.notes)
    said = "{'OCTAD_RUN': 'run', 'OCTAD_STAGE': 'own', 'OCTAD_ATTEMPT': '1', 'OCTAD_CARDS': '1'"
    assert said in log
    assert "\"a 'b' $c\"" in log
    assert not list(Path("/tmp").glob(f"octad-*/{os.getpid()}"))


def test_a_shell_text_fails_where_its_pipe_breaks(bench: Bench) -> None:
    code, log = bench.run({"shell": "echo 'a  b' | wc -c; false | cat"})
    assert code == 20
    assert "5\n" in log
    assert "exit code 1" in bench.failure().error["what"]


@pytest.mark.parametrize(
    ("shell", "code", "is_final", "says"),
    [
        ("echo one; echo two >&2; exit 3", 20, True, "exit code 3; its last lines:\none\ntwo"),
        ("exit 75", 20, False, "exit code 75, without a word"),
        ("kill -9 $$", 20, False, "ended by signal 9"),
        ("sh -c 'kill -9 $$'; exit $?", 20, False, "exit code 137"),
        ("exit 255", 20, True, "exit code 255"),
        ("no_such_program", 20, True, "exit code 127"),
        ("yes | head -c 10000000; exit 4", 20, True, "exit code 4"),
    ],
)
def test_a_failure_says_how_and_whether_another_try_helps(
    bench: Bench, shell: str, code: int, is_final: bool, says: str
) -> None:
    ended, log = bench.run({"shell": shell})
    failure = bench.failure()
    assert ended == code
    assert failure.is_final == is_final
    assert failure.error["kind"] == "StageError"
    assert says in failure.error["what"]
    assert len(failure.error["what"]) < 5000
    assert "Traceback" not in log


def test_what_cannot_be_started_is_a_users_mistake(bench: Bench) -> None:
    code, log = bench.run({"entrypoint": ["./no-such", "x"]})
    assert code == 2
    assert "octad: entrypoint: './no-such' cannot be run: No such file" in log
    assert bench.failure().is_final


def test_a_script_with_windows_line_ends_is_named(bench: Bench) -> None:
    script = bench.folder / "run.sh"
    script.write_bytes(b"#!/bin/bash\necho hi\r\n")
    script.chmod(0o755)
    code, log = bench.run({"entrypoint": ["./run.sh"]})
    assert code == 2
    assert "octad: ./run.sh:2: Windows line ends (CR LF)" in log


def test_a_file_that_octad_cannot_read_is_the_programs_own_affair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    check_line_ends([sys.executable, __file__])


def test_a_promised_output_must_be_there(bench: Bench) -> None:
    code, _ = bench.run({"shell": "true", "outputs": {"net": "weights"}})
    assert code == 20
    failure = bench.failure()
    assert failure.is_final
    assert "made no net" in failure.error["what"]
    assert "OCTAD_OUTPUT_NET" in failure.error["hint"]


def test_a_damaged_input_is_refused_before_anything_runs(bench: Bench, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_text("text")
    given = artefacts.publish_folder(bench.store, "in", "corpus", "dataset", corpus)
    bench.store.put("in/a.txt", b"tixt")
    code, log = bench.run(
        {"shell": "echo RAN", "inputs": {"corpus": "dataset"}}, inputs={"corpus": given}
    )
    assert code == 6
    assert "its digest is wrong" in log
    assert "RAN" not in log


@pytest.mark.parametrize("ending", ["it ends well", "it crashes", "it is stopped"])
def test_nothing_of_a_program_is_left(bench: Bench, ending: str) -> None:
    before = set(marks())
    (bench.folder / "spawn.py").write_text(
        ALL_KINDS_OF_CHILDREN
        + {"it ends well": "", "it crashes": "os.abort()", "it is stopped": "time.sleep(600)"}[
            ending
        ].replace("time.sleep", "print('UP', flush=True); time.sleep")
    )
    bench.order({"entrypoint": [sys.executable, "spawn.py"], "grace_s": 1.0})
    driver = bench.start()
    if ending == "it is stopped":
        until(lambda: len(set(marks()) - before) == NUM_CHILDREN + 1)
        driver.send_signal(signal.SIGTERM)
    log, _ = driver.communicate(timeout=LIMIT_S)
    codes = {"it ends well": 0, "it crashes": 20, "it is stopped": 143}
    assert driver.returncode == codes[ending], log.decode()
    assert set(marks()) <= before


def test_nothing_is_left_even_if_the_driver_is_killed(bench: Bench) -> None:
    before = set(marks())
    (bench.folder / "spawn.py").write_text(ALL_KINDS_OF_CHILDREN + "time.sleep(600)")
    bench.order({"entrypoint": [sys.executable, "spawn.py"], "grace_s": 0.5})
    driver = bench.start()
    until(lambda: len(set(marks()) - before) == NUM_CHILDREN + 1)
    driver.kill()
    driver.wait()
    until(lambda: set(marks()) <= before)


def test_a_program_that_is_stopped_has_time_to_save(bench: Bench, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    shell = (
        f"trap 'sleep 1; echo whole > {saved}; exit 0' TERM; echo UP; while :; do sleep 0.1; done"
    )
    bench.order({"shell": shell, "grace_s": 30.0})
    driver = bench.start()
    assert driver.stdout is not None
    while b"UP" not in driver.stdout.readline():
        pass
    driver.send_signal(signal.SIGTERM)
    driver.communicate(timeout=LIMIT_S)
    assert driver.returncode == 143
    assert saved.read_text() == "whole\n"
    assert not bench.failure().is_final
    assert "SIGTERM" in bench.failure().error["what"]
    assert "was asked to stop (SIGTERM)" in bench.progress().notes


def test_one_that_takes_too_long_to_stop_is_killed(bench: Bench) -> None:
    before = set(marks())
    bench.order({"shell": "trap '' TERM; echo UP; while :; do sleep 0.1; done", "grace_s": 0.3})
    driver = bench.start()
    assert driver.stdout is not None
    while b"UP" not in driver.stdout.readline():
        pass
    driver.send_signal(signal.SIGTERM)
    driver.communicate(timeout=LIMIT_S)
    assert driver.returncode == 143
    assert set(marks()) <= before


def test_output_is_passed_on_as_it_comes(bench: Bench) -> None:
    bench.order({"shell": "echo first; while [ ! -e go ]; do sleep 0.02; done; echo last"})
    driver = bench.start()
    assert driver.stdout is not None
    while b"first" not in driver.stdout.readline():
        assert driver.poll() is None
    (bench.folder / "go").touch()
    rest, _ = driver.communicate(timeout=LIMIT_S)
    assert b"last\n" in rest
    assert driver.returncode == 0


def test_a_log_on_a_full_disk_does_not_stop_the_program(bench: Bench) -> None:
    bench.order({"shell": "yes | head -c 1000000; exit 7"})
    with Path("/dev/full").open("wb") as full:
        bench.start(stdout=full).wait(LIMIT_S)
    assert bench.failure().error["what"].startswith("the program failed: exit code 7")


def test_an_attempt_runs_once(bench: Bench) -> None:
    assert bench.run({"shell": "echo x >> ../ran"})[0] == 0
    before = {meta.key: bench.store.get(meta.key) for meta in bench.store.walk("runs/")}
    driver = bench.start()
    log, _ = driver.communicate(timeout=LIMIT_S)
    assert driver.returncode == 21
    assert b"attempt 1 of own has begun already" in log
    assert {meta.key: bench.store.get(meta.key) for meta in bench.store.walk("runs/")} == before
    assert (bench.folder.parent / "ran").read_text() == "x\n"


def test_the_driver_needs_neither_torch_nor_ray(bench: Bench) -> None:
    bench.order({"shell": "true"})
    (bench.folder / "torch.py").write_text("raise SystemExit('torch was imported')")
    (bench.folder / "ray.py").write_text("raise SystemExit('ray was imported')")
    code = f"import sys; sys.path.insert(0, {str(bench.folder)!r}); from octad.stages import main; "
    order, store = bench.store.url(bench.keys().order), bench.store.spec.url
    code += f"raise SystemExit(main('job', ['--order', {order!r}, '--store', {store!r}]))"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=bench.folder,
        env={**os.environ, "PYTHONPATH": str(Path(artefacts.__file__).parents[2])},
        check=False,
        capture_output=True,
        timeout=LIMIT_S,
    )
    assert ended.returncode == 0, ended.stderr.decode()
