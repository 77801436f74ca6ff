"""Waiting between tries."""

from octad.control.clock import pause_s


def test_a_wait_doubles_and_has_an_end_however_long_something_is_away() -> None:
    assert [pause_s(tries, 0.5, 3.0) for tries in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert pause_s(10**6, 2.0, 60.0) == 60.0
