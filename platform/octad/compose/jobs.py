"""One stage by hand, without a control plane: `python jobs/<kind>.py OVERRIDES...`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from octad.compose.hydra_session import composed
from octad.compose.overrides import bounded, parse_single
from octad.compose.runs import run_of
from octad.compose.values import plain
from octad.errors import ConfigError
from octad.spec.frozen import Spec, nearest
from octad.spec.names import Name, new_run_id
from octad.spec.runs import RunSpec
from octad.spec.stages import StoreSpec, TrackerSpec

_ALSO = frozenset({"run", "stage_name", "storage", "tracker"})


class HandJob(NamedTuple):
    """A stage of a run to be done here and now.

    Attributes:
        spec: The whole run.
        stage: The name of the stage to do.
        run: The run's id.
        store: Where the run's objects lie.
        tracker: Where to ship metrics to, or None.
    """

    spec: RunSpec
    stage: str
    run: str
    store: StoreSpec
    tracker: TrackerSpec | None


class _Place(Spec):
    run: Name | None = None
    stage_name: Name | None = None
    storage: StoreSpec
    tracker: TrackerSpec | None = None


@bounded()
def compose_job(kind: str, overrides: Sequence[str]) -> HandJob:
    """The stage of this kind that these overrides describe.

    Raises:
        ConfigError: Something is unknown or impossible; the pipeline has no stage of this kind, or
            several and `stage_name` does not say which; no store is named; a stage that takes
            something from another is not told which `run` it belongs to; or its number of cards
            is a range.
    """
    config = plain(composed("job", parse_single(overrides), None))
    place = _place(config)
    spec = run_of(config, also=_ALSO)
    stage = _chosen(spec, kind, place.stage_name)
    needs, asked = next((s.needs, s.cards_asked) for s in spec.stages if s.name == stage)
    if asked is not None:
        raise ConfigError(
            f"a range of {asked.min} to {asked.max} cards, but by hand nobody chooses one",
            where=f"{stage}.cards",
            hint=f"say how many: {stage}.cards={asked.max}",
        )
    if place.run is None and needs:
        raise ConfigError(
            f"{stage} takes something from {', '.join(sorted(needs.values()))}",
            where="run",
            hint="name the run that made it: run=ID",
        )
    run = place.run or new_run_id(spec.pipeline)
    return HandJob(spec, stage, run, place.storage, place.tracker)


def _place(config: Mapping[str, Any]) -> _Place:
    place = {key: config[key] for key in _ALSO if key in config}
    if isinstance(place.get("tracker"), dict) and not place["tracker"].get("url"):
        place["tracker"] = None
    parsed = _Place.parse(place)
    if not parsed.storage.url:
        raise ConfigError(
            "a job by hand needs a store",
            where="storage.url",
            hint="name one that all nodes reach: storage.url=file:///shared/octad or s3://...",
        )
    return parsed


def _chosen(spec: RunSpec, kind: str, name: str | None) -> str:
    fitting = [stage.name for stage in spec.stages if stage.kind == kind]
    if name is not None:
        if name not in fitting:
            raise ConfigError(
                f"{spec.pipeline} has no {kind} stage called {name!r}",
                where="stage_name",
                hint=nearest(name, fitting),
            )
        return name
    if len(fitting) != 1:
        found = f"several: {', '.join(fitting)}" if fitting else "none"
        raise ConfigError(
            f"{spec.pipeline} should have one {kind} stage, and has {found}",
            where="stage_name" if fitting else "pipeline",
            hint="say which: stage_name=NAME" if fitting else "choose another pipeline",
        )
    return fitting[0]
