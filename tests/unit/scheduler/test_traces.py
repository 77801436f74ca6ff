"""Traces out of files: what is made of them, and what a bad one is told in one line."""

from __future__ import annotations

import pytest

from octad.errors import ConfigError, DataError
from octad.scheduler.traces import Machine, Trace, make_trace, read_trace

HEADER = b"name,num_gpu,gpu_milli,qos,creation_time,deletion_time,scheduled_time\n"
GOOD = b"a,1,460,LS,0,100,10\n"
NODES = b"sn,cpu_milli,gpu,model\nn0,64000,8,G2\nn1,64000,2,T4\nn2,64000,0,\n"


def read(tasks: bytes, nodes: bytes = NODES) -> Trace:
    return read_trace(tasks, nodes, ("pods.csv", "nodes.csv"))


def test_a_part_of_a_card_is_a_card_and_what_never_ran_is_left_out() -> None:
    trace = read(
        HEADER
        + GOOD
        + b"b,8,1000,LS,5,50,5\nc,0,0,BE,6,60,6\nd,1,1000,BE,7,70,\ne,1,0.0,BE,8,8,8.0\n"
    )
    assert [(t.cards, t.arrives_s, t.runs_s, t.spans_nodes) for t in trace.tasks] == [
        (1, 0, 90, False),
        (8, 5, 45, False),
        (1, 8, 1, False),
    ]
    assert trace.machines == (Machine("n0", 8, "G2"), Machine("n1", 2, "T4"))
    assert trace.left_out == (("never ran", 1), ("no cards", 1))
    assert trace.load == pytest.approx((90 + 8 * 45 + 1) / (10 * 8))
    assert trace.with_load(0.5).load == pytest.approx(0.5)
    assert trace.with_estimates("none", 0).tasks[0].estimate_s is None
    assert trace.with_estimates("exact", 0).tasks[0].estimate_s == 90
    assert trace.with_estimates("rough", 0) == trace.with_estimates("rough", 0)
    only_small = Trace(trace.tasks, trace.machines[1:]).with_machines(1)
    assert [t.cards for t in only_small.tasks] == [1, 1]
    assert only_small.left_out[-1] == ("larger than any node", 1)


@pytest.mark.parametrize(
    ("tasks", "nodes", "says"),
    [
        (b"", NODES, "pods.csv: the file is empty"),
        (HEADER, NODES, "pods.csv: no task that ran on a card"),
        (HEADER + GOOD, b"", "nodes.csv: the file is empty"),
        (HEADER + GOOD, b"sn,gpu,model\n", "nodes.csv: no node with cards"),
        (b"name,gpu_milli\n", NODES, ("pods.csv: no column num_gpu, creation_time, deletion_time, "
         "scheduled_time; it has name, gpu_milli")),
        (HEADER + GOOD, b"sn,model\nn0,G2\n", "nodes.csv: no column gpu; it has sn, model"),
        (HEADER + b"a,one,460,LS,0,1,0\n", NODES,
         "pods.csv line 2: num_gpu must be a number, not 'one'"),
        (HEADER + GOOD + b"b,nan,460,LS,0,1,0\n", NODES,
         "pods.csv line 3: num_gpu must be a number from 0 up, not nan"),
        (HEADER + b"a,1,460,LS,inf,1,0\n", NODES,
         "pods.csv line 2: creation_time must be a number from 0 up, not inf"),
        (HEADER + b"a,-1,460,LS,0,1,0\n", NODES,
         "pods.csv line 2: num_gpu must be a number from 0 up, not -1"),
        (HEADER + b"a,1.5,460,LS,0,1,0\n", NODES,
         "pods.csv line 2: num_gpu must be a whole number up to 1024, not 1.5"),
        (HEADER + b"a,1e300,460,LS,0,1,0\n", NODES,
         "pods.csv line 2: num_gpu must be a whole number up to 1024, not 1e300"),
        (HEADER + b"a,1,460,LS,10,5,10\n", NODES,
         ("pods.csv line 2: creation_time, scheduled_time and deletion_time must come in this "
         "order, not 10, 10, 5")),
        (HEADER + b"a,1,460\n", NODES,
         "pods.csv line 2: another number of values than the header's 7"),
        (HEADER + b"a,1,460,LS,0,1,0,9\n", NODES,
         "pods.csv line 2: another number of values than the header's 7"),
        (HEADER + b"\xff\xfe,1,460,LS,0,1,0\n", NODES, "pods.csv: not UTF-8: byte 0xff at 70"),
        (HEADER + b'"a,1,460,LS,0,1,0\n', NODES, "pods.csv after line 1: not CSV: unexpected end of data"),
        (HEADER + GOOD, b"sn,gpu,model\nn0,-8,G2\n",
         "nodes.csv line 2: gpu must be a number from 0 up, not -8"),
    ],
)  # fmt: skip
def test_a_bad_trace_is_one_clear_line(tasks: bytes, nodes: bytes, says: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tasks, nodes)
    assert str(caught.value) == says


@pytest.mark.parametrize("number", [0, -1, 4])
def test_a_number_of_machines_that_cannot_be_is_refused(number: int) -> None:
    with pytest.raises(ConfigError, match="and the trace has 2"):
        read(HEADER + GOOD).with_machines(number)


@pytest.mark.parametrize("load", [0.0, -1.0, float("nan"), float("inf")])
def test_a_load_that_cannot_be_is_refused(load: float) -> None:
    with pytest.raises(ConfigError, match="must be a positive number"):
        read(HEADER + GOOD).with_load(load)


def test_a_trace_whose_tasks_all_come_at_once_has_no_load() -> None:
    with pytest.raises(ConfigError, match="all tasks arrive at once"):
        read(HEADER + GOOD).with_load(1.0)


def test_an_unknown_generator_or_kind_of_estimate_is_told_what_there_is() -> None:
    with pytest.raises(ConfigError, match="no generator") as caught:
        make_trace("nope", 0)
    assert caught.value.hint == "there are: gangs, mixed"
    with pytest.raises(ConfigError, match="must be exact, rough or none"):
        read(HEADER + GOOD).with_estimates("wild", 0)
