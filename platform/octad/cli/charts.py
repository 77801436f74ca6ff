"""Pictures of a simulation. Needs matplotlib, which comes with the extra `server`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octad.errors import ConfigError
from octad.scheduler.measures import Result


def draw(results: Mapping[str, Result], cards: int, folder: Path) -> list[Path]:
    """Waiting times as a distribution, and cards in use and tasks waiting over time.

    Args:
        results: By policy.
        cards: All there are.
        folder: Made if it is not there.

    Raises:
        ConfigError: matplotlib is not there.
    """
    pyplot = _pyplot()
    folder.mkdir(parents=True, exist_ok=True)
    waits, axes = pyplot.subplots(figsize=(8, 5))
    for name, result in results.items():
        count = len(result.all_waits)
        shares = [(i + 1) / count for i in range(count)]
        axes.step([max(w, 1.0) for w in result.all_waits], shares, where="post", label=name)
    axes.set(xscale="log", xlabel="wait in s (at least 1)", ylabel="share of tasks", ylim=(0, 1.01))
    axes.legend()
    usage, (upper, lower) = pyplot.subplots(2, 1, figsize=(8, 6), sharex=True)
    for name, result in results.items():
        hours = [at_s / 3600 for at_s, _, _ in result.timeline]
        upper.plot(hours, [used / cards for _, used, _ in result.timeline], label=name, lw=0.8)
        lower.plot(hours, [waiting for _, _, waiting in result.timeline], label=name, lw=0.8)
    upper.set(ylabel="share of cards in use", ylim=(0, 1.02))
    lower.set(xlabel="hours", ylabel="tasks that wait")
    lower.legend()
    paths = []
    for figure, name in ((waits, "waits.svg"), (usage, "usage.svg")):
        figure.tight_layout()
        figure.savefig(folder / name)
        pyplot.close(figure)
        paths.append(folder / name)
    return paths


def _pyplot() -> Any:
    try:
        import matplotlib as mpl
        from matplotlib import pyplot as plt
    except ImportError:
        raise ConfigError(
            "matplotlib is not installed", where="--plots", hint="pip install 'octad[server]'"
        ) from None
    mpl.use("svg")
    return plt
