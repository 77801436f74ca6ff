"""A Ray cluster that somebody else runs: it is used, and never changed."""

from __future__ import annotations

import threading
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from octad.clusters._api import RayApi
from octad.clusters._jobs import RayJobs
from octad.clusters._view import look
from octad.errors import ConfigError, OctadError
from octad.ports.clusters import Jobs, Step
from octad.spec.clusters import CARD_RESOURCE, ClusterSpec, ClusterView
from octad.spec.frozen import Spec
from octad.spec.home import expanded

# Where a Ray head listens for drivers unless told otherwise.
_GCS_PORT = 6379


class Settings(Spec):
    """The existing provider's own keys.

    Attributes:
        address: URL of the cluster's dashboard, as this control plane reaches it.
        token_file: Holds the cluster's token; null for a cluster that asks for none.
        card_resource: The Ray resource that counts its cards: card, GPU or NPU.
        ray_address: `host:port` under which its own nodes reach its head; null for the head node
            that the dashboard names, at port 6379.
        ca_file: Certificates to trust for https beside the system's own.
    """

    address: str
    token_file: str | None = None
    card_resource: str = Field(default=CARD_RESOURCE, min_length=1)
    ray_address: str | None = None
    ca_file: str | None = None

    @field_validator("address")
    @classmethod
    def _is_url(cls, address: str) -> str:
        parts = urlsplit(address)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"must be a URL such as http://head:8265, not {address!r}")
        if parts.username or parts.password:
            raise ValueError("must hold no password: put the token in token_file")
        return address.rstrip("/")


class ExistingCluster:
    """Fills `octad.ports.clusters.Provider`.

    Args:
        spec: The cluster.
        home: Not used: nothing is kept.
    """

    def __init__(self, spec: ClusterSpec, home: Path) -> None:
        self.spec = spec
        self._where = f"fleet.clusters.{spec.name}"
        self._settings = Settings.parse(spec.settings, where=self._where)
        token_file, ca_file = self._settings.token_file, self._settings.ca_file
        self._api = RayApi(
            self._settings.address,
            cluster=spec.name,
            token_file=expanded(Path(token_file)) if token_file else None,
            ca_file=expanded(Path(ca_file)) if ca_file else None,
        )
        self._ray_address = self._settings.ray_address or ""
        self._lock = threading.Lock()

    def plan(self) -> list[Step]:
        """What `start` would do; pure."""
        return [Step(action="use cluster", detail=f"{self._settings.address}, as it is")]

    def start(self) -> None:
        """Check that the cluster can be used; changes nothing.

        Raises:
            UnreachableError, AccessError: It does not answer, or not to us.
            ConfigError: Its version does not fit, or it has no cards.
        """
        self._api.check_version()
        resource = self._settings.card_resource
        seen = look(self._api, resource)
        if seen.cards == 0:
            raise ConfigError(
                f"cluster {self.spec.name} has no resource {resource!r} on its {len(seen.nodes)} "
                "live nodes",
                where=f"{self._where}.card_resource",
                hint=f"it has: {', '.join(seen.resources) or 'nothing'}",
            )

    def stop(self) -> None:
        """Does nothing: whoever started the cluster stops it."""

    def observe(self) -> ClusterView:
        """The cluster as it is now; never raises for one that does not answer."""
        try:
            seen = look(self._api, self._settings.card_resource)
        except OctadError as error:
            return self._view("unreachable", str(error))
        resource = self._settings.card_resource
        reason = "" if seen.cards else f"it has no resource {resource!r}, so no cards"
        return self._view("up", reason).model_copy(
            update={"nodes": seen.nodes, "cards": seen.cards, "cards_free": seen.cards_free}
        )

    @property
    def jobs(self) -> Jobs:
        """Its Jobs API."""
        return RayJobs(self._api, self._settings.card_resource)

    @property
    def job_env(self) -> dict[str, str]:
        """What every job needs in its environment.

        Raises:
            UnreachableError, AccessError: The cluster has to be asked, and does not answer.
        """
        with self._lock:
            if not self._ray_address:
                head = look(self._api, self._settings.card_resource).head_address
                if not head:
                    raise ConfigError(
                        f"cluster {self.spec.name} does not name its head node",
                        where=f"{self._where}.ray_address",
                        hint="set it to the head's host:port, as the nodes reach it",
                    )
                self._ray_address = f"{head}:{_GCS_PORT}"
            return {
                "RAY_ADDRESS": self._ray_address,
                "OCTAD_CARD_RESOURCE": self._settings.card_resource,
                "OCTAD_CARD_KIND": self.spec.card.kind,
            }

    def _view(self, state: str, reason: str) -> ClusterView:
        return ClusterView.model_validate(
            {
                "name": self.spec.name,
                "kind": self.spec.kind,
                "card": self.spec.card,
                "state": state,
                "reason": reason,
                "address": self._settings.address,
            }
        )


def build(spec: ClusterSpec, home: Path) -> ExistingCluster:
    """The provider of one existing cluster.

    Raises:
        ConfigError: A setting is wrong.
    """
    return ExistingCluster(spec, home)
