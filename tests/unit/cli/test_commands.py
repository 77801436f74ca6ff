"""The set of commands and options, and what all of them have in common."""

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from octad.cli.main import COMMANDS, build

Octad = Any
StandIn = Any

OPTIONS = {
    "demo": {"overrides", "--conf", "--json"},
    "up": {"overrides", "--conf", "--timeout", "--json"},
    "down": {"--timeout", "--json"},
    "submit": {
        "overrides", "-f", "--follow", "--dry-run", "-m", "--multirun", "--run", "--title", "--conf",
        "--json",
    },
    "runs": {"--limit", "--before", "--sweep", "--json"},
    "run": {"run", "-f", "--follow", "--json"},
    "logs": {"run", "stage", "-f", "--follow", "--attempt", "--after", "--json"},
    "cancel": {"run", "--json"},
    "resume": {"run", "--from", "--code", "-f", "--follow", "--json"},
    "queue": {"--json"},
    "simulate": {
        "--trace", "--nodes", "--generate", "--seed", "--load", "--machines", "--estimates",
        "--team", "--policy", "--plots", "--json",
    },
    "fleet": {"--json"},
    "doctor": {"--json"},
    "ui": {"run", "--print", "--json"},
    "server": {"overrides", "--conf"},
}  # fmt: skip


def commands() -> Any:
    return typer.main.get_command(build(set(COMMANDS))).commands  # type: ignore[attr-defined]


def test_the_commands_and_options_are_these() -> None:
    found = {
        name: {word for parameter in command.params for word in parameter.opts}
        for name, command in commands().items()
    }
    assert found == OPTIONS


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_and_the_command_say_the_same(name: str) -> None:
    assert commands()[name].help.splitlines()[0] == COMMANDS[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(octad: Octad, name: str) -> None:
    done = octad(name, "--help")
    assert done.code == 0
    assert done.out.startswith(f"Usage: octad {name}")


def test_help_and_version(octad: Octad) -> None:
    assert octad().out == octad("--help").out
    assert octad("--version").out == "octad 0.1.0\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sumbit"], "sumbit"),
        (["submit", "--folow"], "--folow"),
        (["run"], "RUN"),
        (["runs", "--limit", "x"], "--limit"),
        (["runs", "--limit", "0"], "--limit"),
    ],
)
def test_a_mistyped_line_is_one_line_with_exit_code_2(
    octad: Octad, arguments: list[str], says: str
) -> None:
    done = octad(*arguments)
    assert done.code == 2
    assert done.err.startswith("octad: ")
    assert says in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["run", "\udcff"], 2),
        (["runs", "--sweep", "a\udcff"], 2),
        (["submit", "--dry-run", "code.path=~no body/x"], 2),
        (["submit", "--dry-run", "data=folder", "data.path=~no body/x"], 2),
        (["submit", "--dry-run", "--conf", "~no body/x"], 2),
    ],
)
def test_what_cannot_be_a_name_or_path_is_one_line(
    octad: Octad, arguments: list[str], code: int
) -> None:
    done = octad(*arguments)
    assert (done.code, done.err.count("\n")) == (code, 1)


@pytest.mark.parametrize("named", ["~no body/x", "/dev/null/x"])
def test_a_home_that_cannot_be_is_one_line(
    octad: Octad, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.delenv("OCTAD_URL", raising=False)
    monkeypatch.setenv("OCTAD_HOME", named)
    done = octad("runs")
    assert done.code in {2, 11}
    assert done.err.count("\n") == 1
    assert named in done.err


HELP = [
    *(sys.executable, "-c"),
    "import sys; from octad.cli.main import main; sys.exit(main())",
    "--help",
]


def test_output_that_no_disk_takes() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(HELP, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (11, "octad: No space left on device\n")


def test_output_that_nobody_reads_any_more() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(HELP, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_output_that_is_closed() -> None:
    line = ["bash", "-c", '"$@" >&-', "bash", *HELP]
    done = subprocess.run(line, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_bug_keeps_its_traceback(octad: Octad, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("octad.cli.runs.connect", broken)
    with pytest.raises(ZeroDivisionError):
        octad("runs")


def test_nothing_slow_is_imported_for_help_and_runs() -> None:
    slow = "hydra omegaconf pydantic httpx rich fastapi ray torch mlflow numpy yaml"
    code = (
        "import sys; from octad.cli.main import build; build({'runs'}); "
        f"print(*(m for m in {slow.split()!r} if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_the_queue_says_why_until_when_and_what_would_help(octad: Octad, stand_in: StandIn) -> None:
    assert octad("queue").err == "nothing waits for cards\n"
    common = {"run": "r1", "cards": 16, "team": "default", "priority": "normal"}
    stand_in.queue = [
        {**common, "stage": "one", "queued_at_ms": 0, "starts_at_ms": 60_000, "unknown": "",
         "reason": "needs 16 cards", "helps": "one more node"},
        {**common, "stage": "two", "queued_at_ms": 0, "starts_at_ms": None,
         "unknown": "nobody can tell when r0 ends", "reason": "needs 16 cards", "helps": ""},
    ]  # fmt: skip
    lines = octad("queue").out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["1", "r1/one"], ["2", "r1/two"]]
    assert "unknown: nobody can tell when r0 ends" in lines[2]
    assert lines[1].endswith("needs 16 cards  one more node")
    assert octad("queue", "--json").document == {"stages": stand_in.queue}


def test_runs_and_fleet_as_tables(octad: Octad, stand_in: StandIn, conftest: Any) -> None:
    assert "no runs yet" in octad("runs").err
    stand_in.views["mine"] = [conftest.run_view("mine", "running", conftest.stage("pretrain"))]
    assert octad("runs").out.splitlines()[1].split()[:3] == ["mine", "running", "pretrain"]
    assert octad("runs", "--json").document["runs"][0]["id"] == "mine"
    assert octad("fleet", "--json").document["clusters"] == []
    assert octad("ui", "--print").out == "http://127.0.0.1:5000\n"
    assert octad("cancel", "mine").out == "mine is cancelled\n"


def test_run_shows_attempts_artefacts_and_metrics(
    octad: Octad, stand_in: StandIn, conftest: Any
) -> None:
    artefact = {"name": "checkpoint", "type": "checkpoint", "uri": "file:///s/c", "digest": "x"}
    done = conftest.stage(
        "pretrain",
        "succeeded",
        attempts=[
            conftest.attempt(1, "lost", reason="a worker died\n\x1b[1m"),
            conftest.attempt(2),
        ],
        artefacts=[artefact],
        metrics={"loss": 2.5, "diverged": "inf"},
    )
    stand_in.views["mine"] = [conftest.run_view("mine", "running", done)]
    shown = octad("run", "mine").out
    for text in ("attempt 1  lost on alpha", "a worker died", "file:///s/c", "loss  2.5", "inf"):
        assert text in shown
    assert "\x1b" not in shown
    assert octad("run", "mine", "--json").document == stand_in.views["mine"][0]
    assert octad("run", "nobody").code == 3


def test_a_range_is_shown_as_asked_and_as_each_attempt_got_it(
    octad: Octad, stand_in: StandIn, conftest: Any
) -> None:
    asked = {"cards_asked": {"min": 2, "max": 8}}
    before = conftest.stage("pretrain", "queued", cards=8, **asked)
    eight = {"cards": 8, "layout": {**conftest.LAYOUT, "dp_shard": 4}}
    attempts = [conftest.attempt(1, "lost", **eight), conftest.attempt(2)]
    after = conftest.stage("pretrain", attempts=attempts, **asked)
    stand_in.views["mine"] = [
        conftest.run_view("mine", "queued", before),
        conftest.run_view("mine", "running", after),
    ]
    assert octad("run", "mine").out.splitlines()[4].split()[:3] == ["pretrain", "queued", "2-8"]
    shown = octad("run", "mine").out
    assert "4 of 2-8" in shown
    assert "attempt 1  lost on alpha, 8 cards (dp_shard 4, tp 2)" in shown
    assert "attempt 2  running on alpha, 4 cards (dp_shard 2, tp 2)" in shown


def test_resume_may_send_newer_code(
    octad: Octad, stand_in: StandIn, conftest: Any, tmp_path: Path
) -> None:
    (tmp_path / "fixed.py").write_text("print('fixed')\n")
    stand_in.views["mine"] = [conftest.run_view("mine", "running", conftest.stage("pretrain"))]
    assert octad("resume", "mine").out == "mine\n"
    assert octad("resume", "mine", "--from", "pretrain", "--code", str(tmp_path)).code == 0
    assert stand_in.resumed[0] == {"from_stage": None, "package": None}
    assert stand_in.resumed[1]["from_stage"] == "pretrain"
    assert stand_in.resumed[1]["package"] in stand_in.blobs


def test_doctor_adds_the_servers_checks(octad: Octad, stand_in: StandIn) -> None:
    done = octad("doctor")
    assert done.code == 0
    assert "ok   store: it is there" in done.out
    stand_in.api = 99
    done = octad("doctor", "--json")
    assert done.code == 10
    bad = [c["name"] for c in done.document["checks"] if not c["is_ok"]]
    assert bad == ["control plane"]


def test_down_and_up_leave_a_control_plane_elsewhere_alone(octad: Octad, stand_in: StandIn) -> None:
    assert octad("down").code == 2
    assert octad("up", "fleet=none").code == 2
    assert stand_in.requests == []


@pytest.mark.parametrize(
    ("encoding", "arguments"),
    [
        ("ascii", ["run", "mine"]),
        pytest.param("cp1252", ["runs"], marks=pytest.mark.long),
        pytest.param("utf-8", ["runs", "--json"], marks=pytest.mark.long),
        pytest.param("ascii", ["runs", "--json"], marks=pytest.mark.long),
    ],
)
def test_output_of_any_encoding(
    stand_in: StandIn, conftest: Any, encoding: str, arguments: list[str]
) -> None:
    stand_in.views["mine"] = [
        conftest.run_view("mine", "running", conftest.stage("a"), title="李明 █ 🚀")
    ]
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    code = "from octad.cli.main import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=env, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_terminal_gets_a_live_view(stand_in: StandIn, conftest: Any) -> None:
    progress = {"phase": "working", "step": 3, "total": 9, "notes": []}
    progress["metrics"] = {"loss": 4.25, "tokens_per_s": 3210.0}
    running = conftest.stage("pretrain", attempts=[conftest.attempt()], progress=progress)
    ended = conftest.stage(
        "pretrain", "succeeded", attempts=[conftest.attempt()], progress=progress
    )
    stand_in.views["mine"] = [
        conftest.run_view("mine", "running", running),
        conftest.run_view("mine", "running", running),
        conftest.run_view("mine", "succeeded", ended),
    ]
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "140", "LINES": "40"}
    code = "from octad.cli.main import main; raise SystemExit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", code, "run", "mine", "-f"],
        env=env, stdin=slave, stdout=subprocess.PIPE, stderr=slave,
    ) as process:  # fmt: skip
        os.close(slave)
        seen = b""
        while b"succeeded" not in seen:
            seen += os.read(master, 65536)
        assert process.stdout is not None
        out = process.stdout.read()
        assert process.wait(20) == 0
    os.close(master)
    shown = seen.decode()
    for text in ("pretrain", "running", "3/9", "4.25", "3,210", "alpha", "━"):
        assert text in shown
    assert b"MLflow" in out
