"""Everything the routes call, as one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octad.control.blobs import Blobs
from octad.control.doctor import Doctor
from octad.control.fleet import Fleet
from octad.control.joblogs import JobLogs
from octad.control.rayjobs import RayJobs
from octad.control.runs import Runs
from octad.control.waiting import WaitingStages


@dataclass(frozen=True, slots=True)
class Services:
    """What the routes call.

    Attributes:
        tracker_url: Where people look at runs.
        shut_down: Ends the control plane; with True its fleet and tracker too.
    """

    runs: Runs
    waiting: WaitingStages
    logs: JobLogs
    blobs: Blobs
    ray_jobs: RayJobs
    fleet: Fleet
    doctor: Doctor
    tracker_url: Callable[[], str]
    shut_down: Callable[[bool], None]
