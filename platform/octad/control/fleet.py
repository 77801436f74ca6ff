"""Brings clusters to the state a person asked for, and keeps looking at them.

One thread for each cluster: a slow one delays no other. What is asked for lies in the database, so
that it holds across a restart; a provider's `start` adopts what is up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, cast

from octad.control.clock import Clock, pause_s
from octad.control.database import Database
from octad.control.tables import WantedCluster
from octad.errors import OctadError
from octad.ports.clusters import Provider
from octad.ports.registry import load
from octad.spec.clusters import ClusterSpec, ClusterState, ClusterView, FleetSpec
from octad.spec.home import Home

log = logging.getLogger(__name__)

OBSERVE_EVERY_S = 2.0
_RETRY_S = 2.0
_RETRY_MOST_S = 60.0
Wanted = Literal["up", "down", "as-found"]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a cluster's next step rests on."""

    wanted: Wanted
    state: ClusterState
    may_retry: bool
    is_whole: bool = True


def step(seen: Seen) -> Literal["start", "mend", "stop", "look"]:
    """What to do with a cluster now. Pure.

    One that is wanted up and does not answer is left alone: silence is not death, and its jobs may
    be running. One that is up and lacks something is started again beside its running jobs: a
    provider keeps what is up.
    """
    if not seen.may_retry:
        return "look"
    if seen.wanted == "down":
        return "stop"
    if seen.wanted == "up" and seen.state == "down":
        return "start"
    if seen.wanted == "up" and seen.state == "up" and not seen.is_whole:
        return "mend"
    return "look"


@dataclass
class _Member:
    spec: ClusterSpec
    provider: Provider
    wanted: Wanted
    view: ClusterView | None = None
    doing: ClusterState | None = None
    is_acting: bool = False
    failure: str = ""
    tries: int = 0
    retry_at_s: float = 0.0
    wake: threading.Event = field(default_factory=threading.Event)


class Fleet:
    """All clusters of this control plane.

    Args:
        spec: The fleet.
        home: Where providers keep what they need.
        database: Holds what was asked.
        clock: Time.
        changed: Called when a cluster's state changes.
        build: Makes a provider; the registry's own unless told otherwise.
    """

    def __init__(
        self,
        spec: FleetSpec,
        home: Home,
        database: Database,
        *,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        self._database = database
        self._clock = clock
        self._changed = changed
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        wanted = self._read_wanted()
        self._members = {
            c.name: _Member(
                spec=c,
                provider=load("octad.clusters", c.kind, f"fleet.clusters.{c.name}.kind").build(
                    c, home.cluster(c.name)
                ),
                wanted=wanted.get(c.name, "as-found"),
            )
            for c in spec.clusters
        }

    @property
    def specs(self) -> tuple[ClusterSpec, ...]:
        """All clusters, as asked for."""
        return tuple(member.spec for member in self._members.values())

    def provider(self, name: str) -> Provider | None:
        """Who provides a cluster; None if it is not in the fleet."""
        member = self._members.get(name)
        return member.provider if member else None

    def view(self, name: str) -> ClusterView | None:
        """A cluster as last seen; None if nobody has looked yet."""
        member = self._members.get(name)
        return _shown(member) if member else None

    def views(self) -> tuple[ClusterView, ...]:
        """All clusters as last seen."""
        return tuple(
            _shown(m) or _view(m, "down", "nobody has looked yet") for m in self._members.values()
        )

    def up(self) -> None:
        """Ask for all clusters to be up; returns at once."""
        self._want("up")

    def down(self) -> None:
        """Ask for all clusters to be ended; returns at once."""
        self._want("down")

    def start_threads(self) -> None:
        """Begin to look, and to act."""
        for member in self._members.values():
            thread = threading.Thread(
                target=self._run, args=(member,), name=f"fleet-{member.spec.name}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def stop_threads(self, timeout_s: float) -> None:
        """Stop looking; clusters stay as they are."""
        self._stop.set()
        for member in self._members.values():
            member.wake.set()
        deadline_s = self._clock.s() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - self._clock.s()))

    def wait_down(self, timeout_s: float) -> bool:
        """Wait until all that was asked to end has ended; whether it has."""
        deadline_s = self._clock.s() + timeout_s
        while any(m.wanted == "down" for m in self._members.values()):
            if self._clock.s() > deadline_s or self._stop.wait(0.05):
                return False
        return True

    # --- one cluster ----------------------------------------------------------------------------

    def _run(self, member: _Member) -> None:
        while not self._stop.is_set():
            member.wake.clear()
            try:
                self.tick(member.spec.name)
            except Exception:
                log.exception("looking at cluster %s failed", member.spec.name)
            member.wake.wait(OBSERVE_EVERY_S)

    def tick(self, name: str) -> None:
        """Look at one cluster and do the next thing that brings it to what is wanted."""
        member = self._members[name]
        self._look(member)
        assert member.view is not None
        may_retry = self._clock.s() >= member.retry_at_s
        is_whole = not member.view.reason
        action = step(Seen(member.wanted, member.view.state, may_retry, is_whole))
        if action == "start":
            self._act(member, "starting", member.provider.start)
        elif action == "mend":
            self._act(member, None, member.provider.start)
        elif action == "stop":
            self._act(member, None, member.provider.stop)
            if not member.failure:
                self._done_down(member)
        if action != "look":
            self._look(member)

    def _look(self, member: _Member) -> None:
        before = member.view.state if member.view else None
        view = member.provider.observe()
        member.view = view
        if view.state == "up" and not view.reason:
            member.failure, member.tries = "", 0
        if view.state != before:
            log.info("cluster %s: %s %s", member.spec.name, view.state, view.reason)
            self._changed()

    def _act(self, member: _Member, doing: ClusterState | None, action: Callable[[], None]) -> None:
        member.doing, member.is_acting = doing, True
        if doing:
            self._changed()
        try:
            action()
        except OctadError as error:
            wait_s = pause_s(member.tries, _RETRY_S, _RETRY_MOST_S)
            member.tries += 1
            member.retry_at_s = self._clock.s() + wait_s
            member.failure = f"{error} (tried {member.tries} times)"
            log.warning("cluster %s: %s", member.spec.name, error)
        else:
            member.failure, member.tries, member.retry_at_s = "", 0, 0.0
        finally:
            member.doing, member.is_acting = None, False

    # --- what is wanted -------------------------------------------------------------------------

    def _want(self, wanted: Wanted) -> None:
        with self._database.write() as session:
            for name in self._members:
                session.merge(WantedCluster(name=name, wanted=wanted))
        for member in self._members.values():
            member.wanted = wanted
            member.retry_at_s, member.tries, member.failure = 0.0, 0, ""
            member.wake.set()
            if wanted == "down" and member.is_acting:
                threading.Thread(target=self._cut_short, args=(member,), daemon=True).start()

    def _cut_short(self, member: _Member) -> None:
        """End a start that is under way, which may take minutes; the next look does the rest."""
        try:
            member.provider.stop()
        except OctadError as error:
            log.info("cluster %s: %s", member.spec.name, error)

    def _done_down(self, member: _Member) -> None:
        """What was ended once stays as it is found: some clusters are not ours to end."""
        with self._database.write() as session:
            row = session.get(WantedCluster, member.spec.name)
            if row is None or row.wanted != "down" or member.wanted != "down":
                return
            row.wanted = "as-found"
        member.wanted = "as-found"

    def _read_wanted(self) -> dict[str, Wanted]:
        with self._database.read() as session:
            return {
                row.name: cast("Wanted", row.wanted) for row in session.query(WantedCluster).all()
            }


def _shown(member: _Member) -> ClusterView | None:
    """What people and the reconciler see: what is being done, before what was seen."""
    if member.doing is not None:
        return _view(member, member.doing, "it is coming up")
    if member.wanted == "up" and member.view is not None and member.view.state == "down":
        if member.failure:
            return _view(member, "down", member.failure)
        return _view(member, "starting", "it is about to start")
    if member.wanted == "up" and member.view is None:
        return _view(member, "starting", "nobody has looked yet")
    if member.view is not None and member.failure and member.view.state != "up":
        return member.view.model_copy(update={"reason": member.failure})
    return member.view


def _view(member: _Member, state: ClusterState, reason: str) -> ClusterView:
    address = member.view.address if member.view else ""
    return ClusterView(
        name=member.spec.name,
        kind=member.spec.kind,
        card=member.spec.card,
        state=state,
        reason=reason,
        address=address,
    )
