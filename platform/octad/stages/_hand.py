"""The order of a stage that is run by hand: what a control plane would have written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octad.compose import compose_job
from octad.errors import ConflictError, NotFoundError
from octad.spec.artefacts import Artefact
from octad.spec.keys import StageKeys
from octad.spec.pipelines import split_need
from octad.spec.runs import RunSpec
from octad.spec.stages import AttemptOrder, AttemptResult, StageSpec
from octad.storage import lineage
from octad.storage.objects import ObjectStore

# What may change from one attempt to the next: the size, and where it runs. What is asked of the
# cards follows from the settings.
_FREE = frozenset(
    {"cards", "cards_asked", "sizes", "layout", "asks", "cluster", "retries", "needs"}
)


def order_by_hand(kind: str, overrides: Sequence[str]) -> tuple[AttemptOrder, RunSpec]:
    """The order for the next attempt of the stage of this kind, written to the store; the run.

    Raises:
        ConfigError: The overrides describe no such stage.
        ConflictError: The run has this stage already, with other settings.
        NotFoundError: A stage that this one needs has no result in the run yet.
    """
    job = compose_job(kind, overrides)
    stage = next(stage for stage in job.spec.stages if stage.name == job.stage)
    store = ObjectStore(job.store)
    keys = StageKeys(job.run, stage.name)
    _check_same(store.read_json(keys.spec), stage, job.run)
    order = AttemptOrder(
        run=job.run,
        attempt=_next_attempt(store, keys),
        stage=stage,
        inputs=_inputs(store, job.run, stage),
        store=job.store,
        seed=job.spec.seed,
        tracker=job.tracker,
    )
    store.put(keys.spec, stage.model_dump_json(indent=2).encode())
    store.put(keys.attempt(order.attempt).order, order.model_dump_json(indent=2).encode())
    return order, job.spec


def newest_result(store: ObjectStore, run: str, stage: str) -> AttemptResult | None:
    """The result of the newest attempt of a stage that has one."""
    keys = StageKeys(run, stage)
    for name in reversed(store.folders(f"{keys.root}/attempts/")):
        if name.isdigit():
            raw = store.find(keys.attempt(int(name)).result)
            if raw is not None:
                return AttemptResult.parse(json.loads(raw))
    return None


def _next_attempt(store: ObjectStore, keys: StageKeys) -> int:
    begun = [int(name) for name in store.folders(f"{keys.root}/attempts/") if name.isdigit()]
    return max([lineage.newest_epoch(store, keys), *begun]) + 1


def _inputs(store: ObjectStore, run: str, stage: StageSpec) -> dict[str, Artefact]:
    found = {}
    for key, need in stage.needs.items():
        source, name = split_need(need, f"{stage.name}.needs.{key}")
        result = newest_result(store, run, source)
        artefacts = {} if result is None else {a.name: a for a in result.artefacts}
        if name not in artefacts:
            raise NotFoundError(
                f"{source} has made no {name} in the run {run} yet",
                where=f"{stage.name}.needs.{key}",
                hint=f"run {source} first, with the same run id and storage",
            )
        found[key] = artefacts[name]
    return found


def _check_same(earlier: Mapping[str, Any] | None, stage: StageSpec, run: str) -> None:
    """Refuse to go on with another stage's checkpoints as if they were this one's."""
    if earlier is None:
        return
    before, now = _flat(earlier), _flat(stage.plain())
    for key in sorted({*before, *now}):
        if key.partition(".")[0] not in _FREE and before.get(key) != now.get(key):
            raise ConflictError(
                f"the run has this stage with {before.get(key)!r} already, not {now.get(key)!r}",
                where=f"{stage.name}.{key.removeprefix('settings.')}",
                hint=f"set it back to go on with {run}, or leave out run= to begin a new one",
            )


def _flat(node: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in node.items():
        here = f"{path}.{key}" if path else str(key)
        flat |= _flat(value, here) if isinstance(value, Mapping) else {here: value}
    return flat
