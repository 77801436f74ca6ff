"""From config files and overrides to frozen specs, with Hydra."""

from octad.compose.folders import conf_folders
from octad.compose.jobs import HandJob, compose_job
from octad.compose.overrides import quoted, sweep
from octad.compose.runs import compose_run
from octad.compose.servers import compose_server

__all__ = [
    "HandJob",
    "compose_job",
    "compose_run",
    "compose_server",
    "conf_folders",
    "quoted",
    "sweep",
]
