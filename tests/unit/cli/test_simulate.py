"""`octad simulate`: from files to a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

Octad = Any

PODS = "name,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\na,8,1000,0,100,0\nb,1,500,10,30,10\n"
NODES = "sn,gpu,model\nn0,8,G2\n"


@pytest.fixture
def pods(tmp_path: Path) -> Path:
    (tmp_path / "x_nodes.csv").write_text(NODES)
    path = tmp_path / "x_pods.csv"
    path.write_text(PODS)
    return path


def test_every_policy_is_a_row(octad: Octad, pods: Path) -> None:
    done = octad("simulate", "--trace", str(pods))
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "2 tasks on 1 nodes with 8 cards, load 10.2, estimates exact"
    assert [line.split()[0] for line in lines[1:]] == [
        "policy", "octad", "fifo-best-fit", "fifo-first-fit", "fifo-worst-fit", "fifo-random",
        "shortest-first", "easy-backfill",
    ]  # fmt: skip


def test_json_has_all_figures(octad: Octad, pods: Path) -> None:
    done = octad("simulate", "--trace", str(pods), "--policy", "octad", "--json")
    found = json.loads(done.out)
    assert found["trace"]["cards"] == 8
    assert found["policies"]["octad"]["waits"]["max_s"] == 90
    assert found["policies"]["octad"]["card_s"] == {"default": 80.0}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "give one of --trace and --generate"),
        (["--generate", "nope"], 2, "no generator is called 'nope'; there are: gangs, mixed"),
        (["--trace", "/nowhere/pods.csv"], 11, "/nowhere/pods.csv: No such file or directory"),
        (["--generate", "mixed", "--team", "a=-1"], 2, "must be NAME=WEIGHT"),
        (["--generate", "mixed", "--team", "a=nan"], 2, "must be NAME=WEIGHT"),
        (["--generate", "mixed", "--policy", "fifo"], 2, "no policy is called 'fifo'"),
        (["--generate", "mixed", "--load", "nan"], 2, "must be a positive number"),
        (["--generate", "mixed", "--estimates", "wild"], 2, "must be exact, rough or none"),
    ],
)
def test_a_mistake_is_one_line(octad: Octad, arguments: list[str], code: int, says: str) -> None:
    done = octad("simulate", *arguments)
    assert done.code == code
    assert len(done.err.strip().splitlines()) == 1
    assert says in done.err


def test_a_bad_trace_is_one_line(octad: Octad, pods: Path) -> None:
    pods.write_bytes(b"\xff")
    done = octad("simulate", "--trace", str(pods))
    assert done.code == 6
    assert done.err == f"octad: {pods}: not UTF-8: byte 0xff at 0\n"


@pytest.mark.slow
def test_pictures_are_drawn(octad: Octad, pods: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    done = octad("simulate", "--trace", str(pods), "--plots", str(folder))
    assert done.code == 0, done.err
    assert {p.name for p in folder.iterdir()} == {"waits.svg", "usage.svg"}
    assert "<svg" in (folder / "waits.svg").read_text()
