"""`octad logs`."""

import time
from typing import Any

import pytest

from octad.cli import output

Octad = Any
StandIn = Any


@pytest.fixture
def two_attempts(stand_in: StandIn, conftest: Any) -> StandIn:
    attempts = [conftest.attempt(1, "lost"), conftest.attempt(2, "succeeded", cluster="beta")]
    view = conftest.run_view(
        "mine",
        "succeeded",
        conftest.stage("pretrain", "succeeded", attempts=attempts),
        conftest.stage("validate", "succeeded", attempts=[conftest.attempt(1, "succeeded")]),
    )
    stand_in.views["mine"] = [view]
    stand_in.logs["mine", "pretrain", 1] = "first é line\nlast of one".encode()
    stand_in.logs["mine", "pretrain", 2] = b"again\n"
    stand_in.logs["mine", "validate", 1] = b"done\n"
    return stand_in


WHOLE = """\
=== pretrain, attempt 1 on alpha
first é line
last of one
=== pretrain, attempt 2 on beta
again
=== validate, attempt 1 on alpha
done
"""


@pytest.mark.parametrize("more", [[], ["-f"]])
def test_every_attempt_in_order(octad: Octad, two_attempts: StandIn, more: list[str]) -> None:
    done = octad("logs", "mine", *more)
    assert (done.code, done.out) == (0, WHOLE)


def test_one_stage_and_one_attempt(octad: Octad, two_attempts: StandIn) -> None:
    assert octad("logs", "mine", "validate").out == "=== validate, attempt 1 on alpha\ndone\n"
    assert "again" not in octad("logs", "mine", "pretrain", "--attempt", "1").out


def test_going_on_loses_and_repeats_nothing(octad: Octad, two_attempts: StandIn) -> None:
    offset = len("first é line\n".encode())
    done = octad("logs", "mine", "--after", f"pretrain/1/{offset}")
    assert "first" not in done.out
    assert done.out.startswith("=== pretrain, attempt 1 on alpha\nlast of one\n")
    assert "again" not in octad("logs", "mine", "--after", "validate/1/0").out


def test_ctrl_c_says_how_to_go_on(
    octad: Octad, two_attempts: StandIn, conftest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = {**two_attempts.views["mine"][0], "state": "running"}
    view["stages"] = [conftest.stage("pretrain", attempts=[conftest.attempt()])]
    two_attempts.views["mine"] = [view]
    two_attempts.growing.add("mine")

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    done = octad("logs", "mine", "-f")
    assert done.code == 130
    assert done.out == "=== pretrain, attempt 1 on alpha\nfirst é line\n"
    assert "octad logs mine -f --after pretrain/1/14" in done.err
    two_attempts.growing.clear()
    again = octad("logs", "mine", "--after", "pretrain/1/14")
    assert again.out == "=== pretrain, attempt 1 on alpha\nlast of one\n"


def test_places_are_bytes_whatever_the_log_holds(
    octad: Octad, stand_in: StandIn, conftest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = conftest.stage("a", attempts=[conftest.attempt()])
    stand_in.views["mine"] = [conftest.run_view("mine", "running", stage)]
    stand_in.growing.add("mine")
    # Bytes that are no text, and a letter of which one byte is there.
    stand_in.logs["mine", "a", 1] = b"one\n\xff\xfe caf\xc3"

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    assert "--after a/1/4" in octad("logs", "mine", "-f").err
    held = octad("logs", "mine", "--json").document["attempts"][0]
    assert (held["text"], held["next_offset"]) == ("one\n", 4)
    stand_in.logs["mine", "a", 1] += b"\xa9\n"
    assert octad("logs", "mine", "--after", "a/1/4").out.endswith("\ufffd\ufffd café\n")


def test_lines_that_come_later_are_shown_once(
    octad: Octad, stand_in: StandIn, conftest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = conftest.run_view(
        "mine", "running", conftest.stage("a", attempts=[conftest.attempt()])
    )
    ended = conftest.run_view(
        "mine", "failed", conftest.stage("a", "failed", attempts=[conftest.attempt(1, "failed")])
    )
    stand_in.views["mine"] = [running, running, running, ended]
    stand_in.growing.add("mine")
    stand_in.logs["mine", "a", 1] = b"one\ntw"

    def grow(seconds: float) -> None:
        stand_in.logs["mine", "a", 1] = b"one\ntwo\nthree"
        stand_in.growing.clear()

    monkeypatch.setattr(time, "sleep", grow)
    done = octad("logs", "mine", "-f")
    assert done.code == 20
    assert done.out == "=== a, attempt 1 on alpha\none\ntwo\nthree\n"


def test_json_holds_each_attempt_with_its_offset(octad: Octad, two_attempts: StandIn) -> None:
    document = octad("logs", "mine", "pretrain", "--json").document
    assert document["run"] == "mine"
    assert [(a["attempt"], a["text"], a["next_offset"]) for a in document["attempts"]] == [
        (1, "first é line\nlast of one\n", 25),
        (2, "again\n", 6),
    ]


def test_mistakes(octad: Octad, two_attempts: StandIn) -> None:
    assert octad("logs", "nobody").code == 3
    assert "it has pretrain, validate" in octad("logs", "mine", "pretrian").err
    assert octad("logs", "mine", "--after", "x").code == 2
    assert octad("logs", "mine", "-f", "--json").code == 2
    unknown = octad("logs", "mine", "--after", "pretrain/3/0")
    assert (unknown.code, unknown.out) == (3, "")
    assert "it has pretrain/1, pretrain/2, validate/1" in unknown.err


def test_a_bar_of_ten_thousand_updates_is_one_line() -> None:
    bar = "".join(f"\r{i:5d}/10000 █" for i in range(10_000)) + "\nend\r\n"
    assert output.last_of_bars(bar) == " 9999/10000 █\nend\n"


def test_no_terminal_obeys_what_a_log_holds() -> None:
    text = "\x1b[2J\x1b]0;title\x07red \x1b[31mtext\x1b[0m \x07\x9b1m\u202eabc\tok\n"
    assert output.harmless(text) == "red text \\x07\\x9b1m\\x202eabc\tok\n"
