"""Which control plane a home's record is believed to lead to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octad.client.endpoint import answering
from octad.spec.home import Home

StandIn = Any


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def _record(home: Home, url: str, pid: int | None) -> None:
    home.endpoint.write_text(json.dumps({"url": url} | ({} if pid is None else {"pid": pid})))


@pytest.mark.parametrize("pid", [os.getpid(), None], ids=["named", "unnamed"])
def test_one_that_lives_is_asked(stand_in: StandIn, home: Home, pid: int | None) -> None:
    _record(home, os.environ["OCTAD_URL"], pid)
    found = answering(home, os.environ["OCTAD_TOKEN"])
    assert found is not None
    assert found["url"] == os.environ["OCTAD_URL"]


def test_one_that_is_dead_is_not_believed_though_another_answers_in_its_place(
    stand_in: StandIn, home: Home
) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    _record(home, os.environ["OCTAD_URL"], dead.pid)
    assert answering(home, os.environ["OCTAD_TOKEN"]) is None
    assert stand_in.requests == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url": 3}', "\xff"])
def test_a_record_that_says_nothing_leads_nowhere(home: Home, text: str) -> None:
    home.endpoint.write_text(text, encoding="latin-1")
    assert answering(home, "a-token") is None
