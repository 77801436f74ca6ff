"""Rows as the wire types that people see."""

from __future__ import annotations

from octad.control.tables import Attempt, Run, Stage
from octad.spec.runs import AttemptView, RunSummary, RunView, StageView
from octad.spec.stages import AttemptResult, Progress, StageSpec
from octad.spec.states import StageState

# Which stage stands for a run in a list: the one that something happens to.
_SHOWN = (
    StageState.FAILED,
    StageState.RUNNING,
    StageState.STARTING,
    StageState.RECOVERING,
    StageState.QUEUED,
    StageState.CANCELLED,
    StageState.WAITING,
)


def run_summary(run: Run) -> RunSummary:
    """One line of a list."""
    return RunSummary(
        id=run.id,
        title=run.title,
        pipeline=run.pipeline,
        state=run.state,
        stage=_shown_stage(run),
        sweep=run.sweep,
        created_at_ms=run.created_at_ms,
        ended_at_ms=run.ended_at_ms,
    )


def run_view(run: Run) -> RunView:
    """A run with its stages."""
    spec = run.parsed()
    return RunView(
        **{name: getattr(run_summary(run), name) for name in RunSummary.model_fields},
        seed=spec.seed,
        stages=tuple(_stage_view(stage) for stage in run.stages),
        mlflow_run_id=run.tracked_id or None,
        mlflow_url=run.tracked_url or "",
        config=spec.config,
    )


def _stage_view(stage: Stage) -> StageView:
    spec = stage.parsed()
    result = AttemptResult.parse(stage.result) if stage.result else None
    newest = spec.sized(stage.attempts[-1].cards) if stage.attempts else spec
    return StageView(
        name=spec.name,
        kind=spec.kind,
        state=stage.state,
        reason=stage.reason or "",
        cluster=stage.attempts[-1].cluster if stage.attempts else spec.cluster,
        cards=newest.cards,
        layout=newest.layout,
        cards_asked=spec.cards_asked,
        needs=spec.needs,
        attempts=tuple(_attempt_view(attempt, spec) for attempt in stage.attempts),
        artefacts=result.artefacts if result else (),
        metrics=result.metrics if result else {},
        progress=Progress.parse(stage.progress) if stage.progress else None,
        mlflow_run_id=stage.tracked_id or None,
        ready_at_ms=stage.ready_at_ms,
        ended_at_ms=stage.ended_at_ms,
    )


def _attempt_view(attempt: Attempt, spec: StageSpec) -> AttemptView:
    return AttemptView(
        **{
            name: getattr(attempt, name)
            for name in AttemptView.model_fields
            if name not in {"layout", "reason"}
        },
        layout=spec.sized(attempt.cards).layout,
        reason=attempt.reason or "",
    )


def _shown_stage(run: Run) -> str:
    for state in _SHOWN:
        for stage in run.stages:
            if stage.state is state:
                return stage.name
    return run.stages[-1].name if run.stages else ""
