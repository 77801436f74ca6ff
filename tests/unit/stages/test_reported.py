"""Metrics that a program appends to a file."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest

from octad.stages._reported import ReportedMetrics, parsed


class Steps:
    def __init__(self) -> None:
        self.taken: list[tuple[int, dict[str, float]]] = []

    def step(self, step: int, metrics: dict[str, float]) -> None:
        self.taken.append((step, metrics))


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (b'{"step": 1, "loss": 2.5}', (1, {"loss": 2.5})),
        (b'{"step": 0}', (0, {})),
        (b'{"step": 1, "loss": NaN}', (1, {"loss": math.nan})),
        (b'{"step": 1, "loss": "2.5"}', None),
        (b'{"step": 1, "ok": true}', None),
        (b'{"step": true}', None),
        (b'{"step": 1.5}', None),
        (b'{"step": -1}', None),
        (b'{"step": 1e400}', None),
        (b'{"step": 99999999999999999999}', None),
        (b'{"loss": 1}', None),
        (b"[1]", None),
        (b"not json", None),
        (b"\xff\xfe", None),
        (b'{"step": 1, "a\\nb": 1}', None),
        (b'{"step": 1, "\\u001b[31m": 1}', None),
        (json.dumps({"step": 1, "k" * 10_000: 1}).encode(), None),
        (json.dumps({"step": 1} | {str(i): i for i in range(1000)}).encode(), None),
        (b'{"step": 1, "big": 1' + b"0" * 400 + b"}", None),
        (b"[" * 100_000, None),
        (b"[" * 60_000, None),
    ],
)
def test_a_line_is_a_step_or_bad(line: bytes, wanted: tuple[int, dict[str, float]] | None) -> None:
    found = parsed(line)
    assert str(found) == str(wanted)


def test_lines_arrive_while_the_program_runs_and_bad_ones_are_counted(tmp_path: Path) -> None:
    steps, path = Steps(), tmp_path / "metrics.jsonl"
    reported = ReportedMetrics(path, steps)
    with path.open("wb", buffering=0) as out:
        out.write(b'{"step": 1, "loss": 3}\n{"step": 2, ')
        deadline = time.monotonic() + 20
        while not steps.taken:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        out.write(b'"loss": 2, "acc": 0.5}\r\nrubbish\n\n{"step": 2, "loss": 9}\n{"step": 1}\n')
        out.write(b'{"step": 7, "loss": 1}')
    reported.close()
    assert steps.taken == [
        (1, {"loss": 3.0}),
        (2, {"loss": 2.0, "acc": 0.5}),
        (7, {"loss": 1.0}),
    ]
    assert reported.num_bad == 3
    assert reported.last == {"loss": 1.0, "acc": 0.5}


def test_no_file_is_no_metrics(tmp_path: Path) -> None:
    reported = ReportedMetrics(tmp_path / "none", Steps())
    reported.close()
    assert (reported.num_bad, reported.last) == (0, {})


def test_a_file_without_a_line_end_is_not_read_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octad.stages._reported._MOST_BYTES", 1000)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"x" * 2500 + b'\n{"step": 1, "loss": 1}\n')
    steps = Steps()
    ReportedMetrics(path, steps).close()
    assert steps.taken == [(1, {"loss": 1.0})]
