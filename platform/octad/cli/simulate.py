"""`octad simulate`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from octad.cli.charts import draw
from octad.cli.options import AsJson
from octad.cli.output import emit, number, say, table
from octad.errors import ConfigError
from octad.scheduler.measures import Result
from octad.scheduler.policies import policies
from octad.scheduler.simulator import simulate
from octad.scheduler.snapshot import Team
from octad.scheduler.traces import Trace, make_trace, read_trace
from octad.spec.frozen import nearest

_HEADER = (
    "policy", "wait mean", "p50", "p95", "p99", "max", "gangs wait", "slowdown", "used",
    "fragmented", "Jain",
)  # fmt: skip
_MOST_BYTES = 1 << 30


def command(
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Tasks, as CSV of the openb form."),
    ] = None,
    nodes: Annotated[
        Path | None,
        typer.Option("--nodes", metavar="FILE", help="Its nodes; else the file beside it."),
    ] = None,
    generate: Annotated[
        str | None, typer.Option("--generate", metavar="NAME", help="Made work: mixed or gangs.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="For all that is drawn.")] = 0,
    load: Annotated[
        float | None,
        typer.Option("--load", help="Move arrivals so that this share of the cards is asked for."),
    ] = None,
    machines: Annotated[
        int | None, typer.Option("--machines", help="Use so many of the nodes, mix kept.")
    ] = None,
    estimates: Annotated[
        str, typer.Option("--estimates", metavar="KIND", help="exact, rough or none.")
    ] = "exact",
    team: Annotated[
        list[str] | None,
        typer.Option("--team", metavar="NAME=WEIGHT[:QUOTA]", help="A team's share."),
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option("--policy", metavar="NAME", help="Only this one.")
    ] = None,
    plots: Annotated[
        Path | None, typer.Option("--plots", metavar="DIR", help="Where pictures go.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run recorded work through the scheduler, beside simple policies.

    octad simulate --trace openb_pods.csv --machines 40 --load 0.9
    """
    work = _work(trace, nodes, generate, seed)
    if machines is not None:
        work = work.with_machines(machines)
    if load is not None:
        work = work.with_load(load)
    work = work.with_estimates(estimates, seed)
    known = policies(work, [_team(text) for text in team or []], seed)
    for name in policy or []:
        if name not in known:
            raise ConfigError(
                f"no policy is called {name!r}", where="--policy", hint=nearest(name, known)
            )
    results = {}
    for name in policy or known:
        say(f"{name} …")
        results[name] = simulate(work, known[name])
    if plots is not None:
        for path in draw(results, work.cards, plots):
            say(str(path))
    if as_json:
        emit({"trace": _facts(work), "policies": {n: r.plain() for n, r in results.items()}})
        return
    facts = _facts(work)
    left_out = ", ".join(f"{count} {why}" for why, count in work.left_out)
    print(
        f"{facts['tasks']} tasks on {facts['nodes']} nodes with {facts['cards']} cards, "
        f"load {facts['load']:.3g}, estimates {estimates}"
        + (f"; left out: {left_out}" if left_out else "")
    )
    print(table(_HEADER, [_row(name, result) for name, result in results.items()]))
    if len({task.team for task in work.tasks}) > 1:
        print(_shares(results))


def _work(trace: Path | None, nodes: Path | None, generate: str | None, seed: int) -> Trace:
    if (trace is None) is (generate is None):
        raise ConfigError("give one of --trace and --generate", where="octad simulate")
    if generate is not None:
        return make_trace(generate, seed)
    assert trace is not None
    beside = nodes or trace.with_name(trace.name.replace("pod", "node"))
    if beside == trace:
        raise ConfigError("the nodes of this trace are not known", hint="give --nodes FILE")
    return read_trace(_content(trace), _content(beside), (str(trace), str(beside)))


def _content(path: Path) -> bytes:
    """What is in a file; one that cannot be read is an error by its own name."""
    if path.is_file() and path.stat().st_size > _MOST_BYTES:
        raise ConfigError("more than 1 GB", where=str(path))
    return path.read_bytes()


def _team(text: str) -> Team:
    name, _, rest = text.partition("=")
    weight, _, quota = rest.partition(":")
    try:
        team = Team(name, float(weight or 1), int(quota) if quota else None)
    except ValueError:
        team = Team(name, -1)
    is_good = name and math.isfinite(team.weight) and team.weight > 0 and (team.quota or 0) >= 0
    if not is_good:
        raise ConfigError(
            f"must be NAME=WEIGHT or NAME=WEIGHT:QUOTA, not {text!r}",
            where="--team",
            hint="a weight is above 0, a quota counts cards",
        )
    return team


def _facts(work: Trace) -> dict[str, float]:
    return {
        "tasks": len(work.tasks),
        "nodes": len(work.machines),
        "cards": work.cards,
        "load": work.load,
        **{f"left out: {why}": count for why, count in work.left_out},
    }


def _row(name: str, result: Result) -> list[str]:
    waits = result.waits
    gangs = result.gang_waits
    return [
        name,
        *(_seconds(s) for s in (waits.mean_s, waits.p50_s, waits.p95_s, waits.p99_s, waits.max_s)),
        "" if gangs is None else _seconds(gangs.mean_s),
        number(result.slowdown),
        f"{result.utilisation:.3f}",
        f"{result.fragmentation:.4f}",
        f"{result.jain:.3f}" if len(result.card_s) > 1 else "",
    ]


def _seconds(value: float) -> str:
    return f"{value:,.0f} s"


def _shares(results: dict[str, Result]) -> str:
    names = sorted({name for result in results.values() for name in result.card_s})
    rows = [
        [policy, *(f"{result.card_s[name] / sum(result.card_s.values()):.3f}" for name in names)]
        for policy, result in results.items()
    ]
    return table(("share of card-seconds", *names), rows)
