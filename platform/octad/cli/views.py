"""Runs and stages as rows and lines. They are the plain JSON of `octad.spec.runs`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from octad.cli.output import clean, duration, moment, number, table
from octad.spec.layouts import AXES

Json = dict[str, Any]
TERMINAL = frozenset({"succeeded", "failed", "cancelled"})


def layout(axes: Json) -> str:
    """`dp_shard 2, tp 2`; `-` for one card."""
    return ", ".join(f"{axis} {axes[axis]}" for axis in AXES if axes.get(axis, 1) != 1) or "-"


def where(stage: Json) -> str:
    """The cluster of a stage: where its last attempt is or was, else where it must go."""
    attempts = stage["attempts"]
    return str(attempts[-1]["cluster"] if attempts else stage["cluster"] or "")


def elapsed_ms(stage: Json, now_ms: int) -> int | None:
    """From the first attempt to the end, or to now."""
    if not stage["attempts"]:
        return None
    begin = stage["attempts"][0]["submitted_at_ms"] or stage["attempts"][0]["intended_at_ms"]
    return int((stage["ended_at_ms"] or now_ms) - begin)


def steps(stage: Json) -> str:
    """`12/400`, or what the attempt is doing, or nothing."""
    progress = stage["progress"]
    if not progress or stage["state"] in {"waiting", "queued"}:
        return ""
    if progress["total"]:
        # The last progress of a stage that succeeded may be from just before its end.
        done = progress["total"] if stage["state"] == "succeeded" else progress["step"]
        return f"{done:,}/{progress['total']:,}"
    is_told = stage["state"] in TERMINAL or progress["phase"] in {"starting", "working", "done"}
    return "" if is_told else str(progress["phase"])


def size(stage: Json) -> str:
    """`4`; for a range `2-8`, and once there is an attempt what it got: `4 of 2-8`."""
    asked = stage.get("cards_asked")
    if not asked:
        return str(stage["cards"])
    between = f"{asked['min']}-{asked['max']}"
    return f"{stage['cards']} of {between}" if stage.get("attempts") else between


def cards(number: int) -> str:
    """`1 card`, `4 cards`."""
    return f"{number} card{'' if number == 1 else 's'}"


def rates(stage: Json) -> str:
    """Loss and speed, as far as there are any."""
    found = (stage["progress"] or {}).get("metrics", {})
    parts = []
    if "loss" in found:
        parts.append(f"loss {number(found['loss'])}")
    if "tokens_per_s" in found:
        parts.append(f"{number(found['tokens_per_s'])} tokens/s")
    return "  ".join(parts)


def stage_table(run: Json, now_ms: int) -> str:
    """One row per stage."""
    rows = [
        [
            stage["name"],
            stage["state"],
            where(stage),
            size(stage),
            layout(stage["layout"]),
            len(stage["attempts"]) or "",
            steps(stage),
            duration(elapsed_ms(stage, now_ms)),
            stage["reason"],
        ]
        for stage in run["stages"]
    ]
    header = ("stage", "state", "cluster", "cards", "layout", "attempt", "step", "took", "reason")
    return table(header, rows)


def heading(run: Json, now_ms: int) -> str:
    """Id, title, state and times of a run."""
    took = duration((run["ended_at_ms"] or now_ms) - run["created_at_ms"])
    begun = moment(run["created_at_ms"])
    return f"{run['id']}  {clean(run['title'])}\n{run['state']}, begun {begun}, took {took}"


def full(run: Json, now_ms: int) -> str:
    """A whole run for people."""
    parts = [heading(run, now_ms), "", stage_table(run, now_ms)]
    for stage in run["stages"]:
        details = list(_details(stage, now_ms))
        if details:
            parts += ["", f"{stage['name']} ({stage['kind']})", *(f"  {line}" for line in details)]
    if run["mlflow_url"]:
        parts += ["", f"MLflow  {run['mlflow_url']}"]
    return "\n".join(parts)


def _details(stage: Json, now_ms: int) -> Iterator[str]:
    for attempt in stage["attempts"]:
        begin = attempt["started_at_ms"] or attempt["submitted_at_ms"] or attempt["intended_at_ms"]
        took = duration((attempt["ended_at_ms"] or now_ms) - begin)
        reason = f"  {clean(attempt['reason'])}" if attempt["reason"] else ""
        # Of other stages it stands in the table.
        axes = f" ({layout(attempt['layout'])})" if stage.get("cards_asked") else ""
        yield (
            f"attempt {attempt['number']}  {attempt['state']} on {attempt['cluster']}, "
            f"{cards(attempt['cards'])}{axes}, {took}  ({attempt['submission_id']}){reason}"
        )
    for note in (stage["progress"] or {}).get("notes", ()):
        yield f"note  {clean(note)}"
    for artefact in stage["artefacts"]:
        yield f"{artefact['type']} {artefact['name']}  {artefact['uri']}"
    for name, value in stage["metrics"].items():
        yield f"{name}  {number(value)}"


def summary(run: Json, now_ms: int) -> str:
    """What a finished run came to: where each stage ran, what validation found, where to look."""
    parts = [heading(run, now_ms), "", stage_table(run, now_ms)]
    for stage in run["stages"]:
        if stage["kind"] == "validate" and stage["metrics"]:
            parts += ["", f"{stage['name']}:", comparison(stage["metrics"])]
    if run["mlflow_url"]:
        parts += ["", f"MLflow  {run['mlflow_url']}"]
    return "\n".join(parts)


def comparison(metrics: Json) -> str:
    """Validation as a table: a row for each text and each of the weights.

    The metrics are called `<weights>_<text>_loss`, `<weights>_<text>_perplexity`, `<text>_gain`.
    """
    rows = []
    gains = []
    for name, value in metrics.items():
        weights, _, rest = name.partition("_")
        text, _, what = rest.rpartition("_")
        if what == "loss" and text:
            perplexity = metrics.get(f"{weights}_{text}_perplexity", "")
            shown = f"{perplexity:.2f}" if isinstance(perplexity, float | int) else perplexity
            rows.append([text, weights, number(value), shown])
        elif name.endswith("_gain"):
            text = name.removesuffix("_gain")
            verb = "lowers" if value >= 0 else "raises"
            gains.append(f"Tuning {verb} the perplexity of held-out {text} by {abs(value):.1%}.")
    if not rows:
        return table(("metric", "value"), [[name, number(v)] for name, v in metrics.items()])
    rows.sort(key=lambda row: row[0])
    return "\n".join([table(("held-out", "weights", "loss", "perplexity"), rows), *gains])
