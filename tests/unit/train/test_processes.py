"""What every worker finds out before it meets the others."""

from __future__ import annotations

import sys

import pytest

from octad.train.processes import interface_to


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_the_interface_to_this_machine_is_the_loopback() -> None:
    assert interface_to("127.0.0.1") == "lo"


def test_where_it_cannot_be_known_there_is_none() -> None:
    assert interface_to("::1") == ""
