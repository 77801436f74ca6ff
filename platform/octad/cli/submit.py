"""`octad submit`."""

from __future__ import annotations

from typing import Annotated

import typer

from octad.cli.follow import check_outcome, follow, follow_many
from octad.cli.options import AsJson, Conf, Follow, Overrides
from octad.cli.output import clean, emit, say, table
from octad.cli.sending import check, compose, send
from octad.cli.views import Json, layout, size, summary
from octad.client.connect import connect
from octad.client.wire import Wire
from octad.compose import sweep as combinations
from octad.errors import ConfigError, OctadError
from octad.spec.names import checked_name, new_run_id
from octad.spec.runs import RunSpec


def command(
    overrides: Overrides = None,
    follow_it: Follow = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would run; sends nothing.")
    ] = False,
    multirun: Annotated[
        bool, typer.Option("-m", "--multirun", help="A run for each combination of a=1,2 b=3,4.")
    ] = False,
    run: Annotated[
        str | None, typer.Option("--run", metavar="ID", help="The run's id, of your choice.")
    ] = None,
    title: Annotated[
        str | None, typer.Option("--title", metavar="TEXT", help="What to call it.")
    ] = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Compose a run, check it, and send it.

    The last line of stdout is the run's id (of -m: a line for each). ctrl-C while following detaches only.
    Text in an override needs no quoting beyond the shell's: title=李明, ckpt=epoch=3.ckpt.

    octad submit pipeline=quickstart pretrain.cards=8 pretrain.optimizer.lr=1e-3 --follow
    """
    typed = overrides or []
    _check_id(run, is_sweep=multirun)
    if multirun:
        _sweep(typed, conf=conf, title=title, dry_run=dry_run, follow_it=follow_it, as_json=as_json)
        return
    spec = compose(typed, conf, title)
    if dry_run:
        check(spec)
        emit(spec.plain()) if as_json else print(plan(spec))
        return
    wire = connect()
    view = send(wire, spec, run=run)
    if follow_it:
        say(f"submitted {view['id']}")
        followed(wire, view["id"], as_json=as_json)
    elif as_json:
        emit(view)
    else:
        print(view["id"])


def followed(wire: Wire, run: str, *, as_json: bool) -> None:
    """Follow a run, then print what it came to; the last line of stdout is its id.

    Raises:
        OctadError: It did not succeed, or was lost sight of.
    """
    try:
        view = follow(wire, run)
        if as_json:
            emit(view)
        else:
            print(summary(view, wire.now_ms()))
            print()
        check_outcome(view)
    finally:
        if not as_json:
            print(run, flush=True)


def plan(spec: RunSpec) -> str:
    """What would run, for people."""
    rows = [
        [
            stage.name,
            stage.kind,
            size(stage.plain()),
            layout(stage.as_asked()["layout"]),
            stage.cluster or "any",
            ", ".join(f"{key}: {need}" for key, need in stage.needs.items()),
        ]
        for stage in spec.stages
    ]
    header = ("stage", "kind", "cards", "layout", "cluster", "needs")
    parts = [f"{spec.pipeline}, {clean(spec.title)}, seed {spec.seed}", "", table(header, rows)]
    for stage in spec.stages:
        parts += ["", stage.name, *(f"  {line}" for line in _settings(stage.settings))]
        if stage.sizes:
            parts.append(f"  sizes it can use: {', '.join(map(str, stage.sizes))}")
    return "\n".join(parts)


def _settings(node: Json, path: str = "") -> list[str]:
    lines = []
    for key, value in node.items():
        here = f"{path}.{key}".strip(".")
        if isinstance(value, dict) and value:
            lines += _settings(value, here)
        else:
            lines.append(f"{here}: {clean(str(value))}")
    return lines


def _check_id(run: str | None, *, is_sweep: bool) -> None:
    if run is None:
        return
    if is_sweep:
        raise ConfigError("one id cannot name several runs", where="--run", hint="leave it out")
    try:
        checked_name(run)
    except ValueError as error:
        raise ConfigError(str(error), where="--run") from None


def _sweep(
    overrides: list[str],
    *,
    conf: Conf,
    title: str | None,
    dry_run: bool,
    follow_it: bool,
    as_json: bool,
) -> None:
    """A run for each combination; one that fails does not keep the others."""
    combined = combinations(overrides)
    changing = {i for i in range(len(overrides)) if len({c[i] for c in combined}) > 1}
    group = new_run_id("sweep")
    wire = None if dry_run else connect()
    results: list[Json] = []
    worst: OctadError | None = None
    for combination in combined:
        swept = " ".join(combination[i] for i in sorted(changing))
        result: Json = {"overrides": combination, "run": None}
        try:
            spec = compose(combination, conf, title and f"{title} {swept}".strip(), more=swept)
            if wire is None:
                check(spec)
                result["spec"] = spec.plain()
                as_json or print(f"# {swept}\n{plan(spec)}\n")
            else:
                result["run"] = send(wire, spec, sweep=group)["id"]
                as_json or print(result["run"], flush=True)
                say(f"{result['run']}  {swept}")
        except OctadError as error:
            worst = error
            result["error"] = error.to_wire()
            say(f"octad: {f'{swept}: ' if swept else ''}{clean(str(error))}")
        results.append(result)
    if wire is not None and follow_it:
        worst = _follow_all(wire, results) or worst
    if as_json:
        emit({"sweep": group, "runs": results})
    if worst is not None:
        bad = [r["run"] or " ".join(r["overrides"]) for r in results if "error" in r]
        raise type(worst)(
            f"{len(bad)} of {len(results)} did not go well: {', '.join(bad)}", where=group
        )


def _follow_all(wire: Wire, results: list[Json]) -> OctadError | None:
    worst = None
    ended = follow_many(wire, [r["run"] for r in results if r["run"]])
    for result in results:
        if result["run"]:
            view = ended[result["run"]]
            result["view"] = view
            try:
                check_outcome(view)
            except OctadError as error:
                worst = error
                result["error"] = error.to_wire()
                say(f"octad: {clean(str(error))}")
    return worst
