"""MLflow, by its own client. Everything here is idempotent: runs are found again by our tags."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from octad.errors import ConfigError, UnreachableError
from octad.ports.trackers import Outcome
from octad.spec.flat import flattened
from octad.spec.stages import MetricPoint

RUN_TAG = "octad.run"
STAGE_TAG = "octad.stage"
DIVERGED_TAG = "octad.diverged"
PARENT_TAG = "mlflow.parentRunId"
_CONFIG_TAG = "octad.config"
_EXTERNAL_TAG = "mlflow.model.isExternal"
# MLflow cuts longer ones without a word; we cut them, and say so.
MOST_PARAM = 6000
MOST_TAG = 5000
MOST_KEY = 250
_MOST_METRICS = 1000
_MOST_PARAMS = 100
_KEY = re.compile(r"[^A-Za-z0-9_\-. /:]")
# Defaults wait minutes for a server that is away; whoever calls us tries again anyway.
_CLIENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
# These name a run or server that somebody else's code was meant to use.
_NOT_OURS = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")


_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def _pass_by_proxies(url: str) -> None:
    """A server on this machine is never reached through a proxy, whatever the environment says."""
    host = urlsplit(url).hostname
    if host in _LOOPBACK:
        for name in ("no_proxy", "NO_PROXY"):
            direct = os.environ.get(name, "").split(",")
            if host not in direct:
                os.environ[name] = ",".join(filter(None, [*direct, host]))


class MlflowTracker:
    """Fills `octad.ports.trackers.Tracker`."""

    def __init__(self, url: str) -> None:
        for name in _NOT_OURS:
            os.environ.pop(name, None)
        os.environ.update(_CLIENT)
        _pass_by_proxies(url)
        from mlflow import MlflowClient

        self._url = url.rstrip("/")
        self._client: Any = MlflowClient(tracking_uri=self._url)
        self._experiments: dict[str, str] = {}

    def ensure_run(
        self, run: str, title: str, tags: dict[str, str], config: dict[str, object]
    ) -> str:
        """The parent run, in the experiment of its pipeline, with its config as params and whole
        as an artifact.
        """
        pipeline = tags.get("octad.pipeline", "octad")
        with self._reached():
            experiment = self._experiment(pipeline)
            found = self._find(experiment, {RUN_TAG: run}, is_parent=True)
            if found is None:
                wanted = {**_tags(tags), RUN_TAG: run}
                found = self._client.create_run(experiment, tags=wanted, run_name=title)
            run_id = str(found.info.run_id)
            # The tag comes last: while it is missing, params and config are not known to be whole.
            if _CONFIG_TAG not in found.data.tags:
                self._log_params(run_id, flattened(config), found.data.params)
                self._client.log_text(run_id, _pretty(config), "config.json")
                self._client.set_tag(run_id, _CONFIG_TAG, "config.json")
            return run_id

    def ensure_stage(
        self, parent: str, stage: str, tags: dict[str, str], params: dict[str, str]
    ) -> str:
        """A stage's run under its parent; tags are brought up to date on each call."""
        with self._reached():
            experiment = str(self._client.get_run(parent).info.experiment_id)
            key = {STAGE_TAG: stage, PARENT_TAG: parent}
            wanted = {**_tags(tags), **key}
            found = self._find(experiment, key)
            if found is None:
                found = self._client.create_run(experiment, tags=wanted, run_name=stage)
            run_id = str(found.info.run_id)
            for name, value in wanted.items():
                if found.data.tags.get(name) != value:
                    self._client.set_tag(run_id, name, value)
            self._log_params(run_id, params, found.data.params)
            return run_id

    def log_points(self, tracked: str, points: Sequence[MetricPoint]) -> None:
        """Add step metrics. An infinite value is stored as nan, and the run is tagged: MLflow
        would store the largest float there is, and call it the best.
        """
        from mlflow.entities import Metric

        metrics, diverged = [], []
        for point in points:
            for name, value in point.metrics.items():
                number = float(value)
                if number in {float("inf"), float("-inf")}:
                    diverged.append(f"{name} was {number} at step {point.step}")
                    number = float("nan")
                metrics.append(Metric(_key(name), number, point.time_ms, point.step))
        with self._reached():
            for batch in _batches(metrics, _MOST_METRICS):
                self._client.log_batch(tracked, metrics=batch, synchronous=True)
            if diverged and DIVERGED_TAG not in self._client.get_run(tracked).data.tags:
                self._client.set_tag(tracked, DIVERGED_TAG, diverged[0])

    def log_final(self, tracked: str, metrics: dict[str, float]) -> None:
        """Set final metrics; where a step metric has the name, at its last step."""
        from mlflow.entities import Metric

        with self._reached():
            known = {m.key: m for m in self._client.get_run(tracked).data._metric_objs}  # noqa: SLF001
            wanted = []
            for name, value in metrics.items():
                last = known.get(_key(name))
                if last is not None and last.value == value:
                    continue
                time_ms = max(int(time.time() * 1000), last.timestamp + 1 if last else 0)
                wanted.append(Metric(_key(name), value, time_ms, last.step if last else 0))
            for batch in _batches(wanted, _MOST_METRICS):
                self._client.log_batch(tracked, metrics=batch, synchronous=True)

    def log_checkpoint(self, tracked: str, name: str, tags: dict[str, str]) -> str:
        """An external logged model: MLflow knows where the weights lie, and never holds them."""
        from mlflow.entities import LoggedModelStatus

        with self._reached():
            experiment = str(self._client.get_run(tracked).info.experiment_id)
            wanted = {**_tags(tags), _EXTERNAL_TAG: "true"}
            model = self._find_model(experiment, tracked, name, wanted.get("uri", ""))
            if model is None:
                model = self._client.create_logged_model(
                    experiment_id=experiment,
                    name=name,
                    source_run_id=tracked,
                    tags=wanted,
                    model_type="checkpoint",
                )
            if str(model.status) != str(LoggedModelStatus.READY):
                self._client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
            return str(model.model_id)

    def set_outcome(self, tracked: str, outcome: Outcome) -> None:
        """Say how a run stands; one that goes on again is RUNNING again."""
        with self._reached():
            if self._client.get_run(tracked).info.status == outcome:
                return
            if outcome == "RUNNING":
                self._client.update_run(tracked, status=outcome)
            else:
                self._client.set_terminated(tracked, status=outcome)

    def page_url(self, tracked: str) -> str:
        """Where a person looks at a run."""
        with self._reached():
            experiment = self._client.get_run(tracked).info.experiment_id
        return f"{self._url}/#/experiments/{experiment}/runs/{tracked}"

    # --- finding --------------------------------------------------------------------------------

    def _experiment(self, pipeline: str) -> str:
        name = f"octad/{pipeline}"
        if name not in self._experiments:
            found = self._client.get_experiment_by_name(name)
            self._experiments[name] = (
                str(found.experiment_id) if found else self._make_experiment(name)
            )
        return self._experiments[name]

    def _make_experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        try:
            return str(self._client.create_experiment(name))
        except MlflowException:
            # Another shipper may have made it this moment.
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return str(found.experiment_id)

    def _find(self, experiment: str, tags: Mapping[str, str], *, is_parent: bool = False) -> Any:
        """The oldest run with these tags, so that of two made at once all choose the same."""
        query = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        found = self._client.search_runs(
            [experiment], query, max_results=50, order_by=["attributes.start_time ASC"]
        )
        wanted = [r for r in found if not (is_parent and PARENT_TAG in r.data.tags)]
        return wanted[0] if wanted else None

    def _find_model(self, experiment: str, tracked: str, name: str, uri: str) -> Any:
        query = f"source_run_id = '{tracked}' AND name = '{name}'"
        found = self._client.search_logged_models([experiment], filter_string=query)
        return next((m for m in found if m.tags.get("uri", "") == uri), None)

    def _log_params(self, run_id: str, params: Mapping[str, str], known: Mapping[str, str]) -> None:
        """Params never change once set: MLflow refuses it, and a run's config is frozen anyway."""
        from mlflow.entities import Param

        wanted = {_key(name): shortened(value, MOST_PARAM) for name, value in params.items()}
        fresh = [Param(name, value) for name, value in wanted.items() if name not in known]
        for batch in _batches(fresh, _MOST_PARAMS):
            self._client.log_batch(run_id, params=batch, synchronous=True)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        from mlflow.exceptions import MlflowException

        try:
            yield
        except (MlflowException, OSError) as error:
            text = " ".join(str(error).split())[:300]
            raise UnreachableError(f"MLflow does not answer: {text}", where=self._url) from None


def shortened(text: str, most: int) -> str:
    """`text`, or its beginning with a visible word on what is missing."""
    if len(text) <= most:
        return text
    tail = f"… [cut: {len(text)} characters, whole in config.json]"
    return text[: most - len(tail)] + tail


def build(url: str) -> MlflowTracker:
    """The tracker at an address.

    Raises:
        ConfigError: There is none.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"the address of MLflow is needed, not {url!r}",
            where="tracker.url",
            hint="it looks like http://tracker.example:5000",
        )
    return MlflowTracker(url)


def _tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {_key(name): shortened(value, MOST_TAG) for name, value in tags.items()}


def _key(name: str) -> str:
    """A name that MLflow takes. It reads one as a path, which must be in its shortest form."""
    parts = _KEY.sub("_", name)[:MOST_KEY].split("/")
    path = "/".join(part for part in parts if part not in {"", ".", ".."}) or "_"
    return path.replace("..", "__", 1) if path.startswith("..") else path


def _batches(items: Sequence[Any], most: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), most):
        yield list(items[start : start + most])


def _pretty(config: Mapping[str, object]) -> str:
    return json.dumps(config, indent=2, ensure_ascii=False, default=str)
