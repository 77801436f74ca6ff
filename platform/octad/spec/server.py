"""How a control plane is set up, and where one can be found."""

from __future__ import annotations

from pydantic import Field

from octad.spec.clusters import FleetSpec
from octad.spec.frozen import Spec
from octad.spec.stages import StoreSpec, TrackerSpec

API_VERSION = 1


class ServerSpec(Spec):
    """A control plane as asked for.

    Attributes:
        host: Loopback, until TLS and teams are set up.
        port: 0 takes the usual one if it is free, else any.
        storage: An empty URL means the folder `store` in its home.
        tracker: An empty URL means one that the control plane starts itself.
        fleet: The clusters it is to know.
        python: The interpreter that jobs are started with on the clusters.
    """

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    storage: StoreSpec
    tracker: TrackerSpec
    fleet: FleetSpec
    python: str = "python"


class Endpoint(Spec):
    """`endpoint.json`: where the control plane of a home listens."""

    url: str
    pid: int
    version: str
    api: int
    python: str
    started_at_ms: int
