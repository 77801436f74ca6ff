"""Clusters are brought to what a person asked for, and are never ended by mistake."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from octad.control.fleet import Fleet, Seen, step
from octad.errors import ConfigError, UnreachableError
from octad.spec.clusters import CardSpec, ClusterSpec, FleetSpec
from octad.spec.home import Home

if TYPE_CHECKING:
    from tests.unit.control.conftest import World


@pytest.fixture
def make(
    world: World, fake_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Fleet]:
    monkeypatch.syspath_prepend(str(fake_path))

    def made(kind: str = "fake", **settings: Any) -> Fleet:
        card = CardSpec(kind="sim", name="sim")
        spec = ClusterSpec(name="gamma", kind=kind, card=card, settings=settings)
        return Fleet(
            FleetSpec(clusters=(spec,)),
            Home(tmp_path / "fleet"),
            world.database,
            clock=world.clock,
            changed=lambda: None,
        )

    return made


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        (Seen("up", "down", may_retry=True), "start"),
        (Seen("up", "down", may_retry=False), "look"),
        (Seen("up", "unreachable", may_retry=True), "look"),
        (Seen("up", "up", may_retry=True), "look"),
        (Seen("up", "up", may_retry=True, is_whole=False), "mend"),
        (Seen("as-found", "up", may_retry=True, is_whole=False), "look"),
        (Seen("as-found", "down", may_retry=True), "look"),
        (Seen("as-found", "up", may_retry=True), "look"),
        (Seen("down", "up", may_retry=True), "stop"),
        (Seen("down", "unreachable", may_retry=True), "stop"),
        (Seen("down", "up", may_retry=False), "look"),
    ],
)
def test_step(seen: Seen, wanted: str) -> None:
    assert step(seen) == wanted


def test_what_was_asked_holds_across_a_restart(make: Callable[..., Fleet]) -> None:
    first = make()
    first.tick("gamma")
    assert first.views()[0].state == "down"
    first.up()
    assert first.views()[0].state == "starting"
    first.tick("gamma")
    assert first.views()[0].state == "up"
    provider = first.provider("gamma")
    assert provider is not None
    provider.stop()  # it dies while the control plane is away
    second = make()
    second.tick("gamma")
    assert second.views()[0].state == "up"
    second.down()
    second.tick("gamma")
    assert second.views()[0].state == "down"
    assert second.wait_down(0)
    third = make()
    third.tick("gamma")
    assert third.views()[0].state == "down"


def test_a_cluster_that_does_not_start_says_why_and_is_tried_again(
    make: Callable[..., Fleet], world: World
) -> None:
    fleet = make(start_fails="port 1 is in use")
    fleet.up()
    for tries in (1, 2):
        fleet.tick("gamma")
        view = fleet.views()[0]
        assert (view.state, view.reason) == ("down", f"port 1 is in use (tried {tries} times)")
        fleet.tick("gamma")
        assert fleet.views()[0].reason == view.reason  # not before its time
        world.clock.pass_by(60)


def test_a_start_is_cut_short_by_the_wish_to_end(
    make: Callable[..., Fleet], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = make()
    provider = fleet.provider("gamma")
    assert provider is not None
    has_begun, is_stopped = threading.Event(), threading.Event()

    def start() -> None:
        has_begun.set()
        assert is_stopped.wait(20)
        raise UnreachableError("it was stopped while it started")

    with monkeypatch.context() as patched:
        patched.setattr(provider, "start", start)
        patched.setattr(provider, "stop", is_stopped.set)
        fleet.up()
        look = threading.Thread(target=fleet.tick, args=("gamma",))
        look.start()
        assert has_begun.wait(20)
        fleet.down()
        look.join(20)
        assert not look.is_alive()
    world.clock.pass_by(60)
    fleet.tick("gamma")
    assert fleet.wait_down(0)
    assert fleet.views()[0].state == "down"


def test_an_unknown_kind_is_refused(make: Callable[..., Fleet]) -> None:
    with pytest.raises(ConfigError, match="no clusters kind is called 'fakee'"):
        make("fakee")


def test_threads_bring_it_up_and_leave_it_up(make: Callable[..., Fleet]) -> None:
    fleet = make()
    fleet.start_threads()
    fleet.down()
    assert fleet.wait_down(20)
    fleet.up()
    fleet.stop_threads(timeout_s=20)
    fleet.tick("gamma")
    assert fleet.views()[0].state == "up"
