"""Stages by hand: the order that a control plane would have written, and the tracker told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.storage.test_lineage import commit

from octad.errors import ConfigError, ConflictError, NotFoundError, UnreachableError
from octad.spec.keys import StageKeys
from octad.spec.runs import RunSpec
from octad.spec.stages import AttemptOrder, AttemptResult, MetricPoint, StoreSpec
from octad.stages._hand import order_by_hand
from octad.stages._shipping import Shipping
from octad.storage import lineage
from octad.storage.objects import ObjectStore, digest_of


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(StoreSpec(url=(tmp_path / "store").as_uri()))


def by_hand(store: ObjectStore, kind: str, *overrides: str) -> tuple[AttemptOrder, RunSpec]:
    return order_by_hand(kind, ["run=mine", f"storage.url={store.spec.url}", *overrides])


def finish(store: ObjectStore, stage: str, attempt: int, names: dict[str, str]) -> None:
    """Give a stage a result."""
    made = [
        {"name": name, "type": kind, "uri": store.url(f"{stage}{attempt}/{name}"), "digest": D}
        for name, kind in names.items()
    ]
    result = AttemptResult.parse({"attempt": attempt, "artefacts": made})
    keys = StageKeys("mine", stage).attempt(attempt)
    store.put(keys.result, result.model_dump_json().encode())


D = "sha256:" + "0" * 64
MADE = {"corpus": "dataset", "tuning": "dataset", "tokenizer": "tokenizer"}


def test_an_order_takes_the_newest_results_of_its_run(store: ObjectStore) -> None:
    finish(store, "preprocess", 1, MADE)
    finish(store, "preprocess", 2, MADE)
    order, spec = by_hand(store, "pretrain", "pretrain.cards=2", "pretrain.layout.tp=1", "seed=7")
    assert (order.run, order.attempt, order.stage.cards, order.seed) == ("mine", 1, 2, 7)
    assert order.stage.layout.dp_shard == 2
    assert set(order.inputs) == {"corpus", "tokenizer"}
    assert order.inputs["corpus"].uri == store.url("preprocess2/corpus")
    keys = StageKeys("mine", "pretrain")
    written = AttemptOrder.parse(json.loads(store.get(keys.attempt(1).order)))
    assert written == order
    assert spec.pipeline == "quickstart"


def test_the_next_attempt_comes_after_all_that_have_begun(store: ObjectStore) -> None:
    first, _ = by_hand(store, "preprocess")
    assert first.attempt == 1
    again, _ = by_hand(store, "preprocess")
    assert again.attempt == 2
    lineage.claim(store, again.model_copy(update={"attempt": 9}))
    assert by_hand(store, "preprocess")[0].attempt == 10


def test_what_is_needed_and_not_there_is_named(store: ObjectStore) -> None:
    with pytest.raises(NotFoundError) as caught:
        by_hand(store, "pretrain")
    assert caught.value.what == "preprocess has made no corpus in the run mine yet"
    assert caught.value.where == "pretrain.needs.corpus"


def test_a_run_is_not_gone_on_with_as_if_it_were_another(store: ObjectStore) -> None:
    by_hand(store, "preprocess", "preprocess.vocab=512")
    by_hand(store, "preprocess", "preprocess.vocab=512", "preprocess.cards=4")
    with pytest.raises(ConflictError, match="512 already, not 1024") as caught:
        by_hand(store, "preprocess", "preprocess.vocab=1024")
    assert caught.value.where == "preprocess.vocab"


def test_a_store_must_be_named() -> None:
    with pytest.raises(ConfigError, match="needs a store"):
        order_by_hand("preprocess", ["run=mine"])


class FakeTracker:
    """Keeps what it is told; does not answer while it is down."""

    def __init__(self) -> None:
        self.is_down = False
        self.points: dict[str, list[MetricPoint]] = {}
        self.final: dict[str, dict[str, float]] = {}
        self.outcomes: dict[str, str] = {}
        self.checkpoints: list[dict[str, str]] = []

    def _answer(self) -> None:
        if self.is_down:
            raise UnreachableError("down")

    def ensure_run(self, run: str, title: str, tags: dict[str, str], config: Any) -> str:
        self._answer()
        return f"r-{run}"

    def ensure_stage(self, parent: str, stage: str, tags: Any, params: dict[str, str]) -> str:
        self._answer()
        assert params["settings.vocab"] == "2048"
        return f"s-{stage}"

    def log_points(self, tracked: str, points: Sequence[MetricPoint]) -> None:
        self._answer()
        self.points.setdefault(tracked, []).extend(points)

    def log_final(self, tracked: str, metrics: dict[str, float]) -> None:
        self._answer()
        self.final[tracked] = metrics

    def log_checkpoint(self, tracked: str, name: str, tags: dict[str, str]) -> str:
        self._answer()
        self.checkpoints.append({"name": name, **tags})
        return name

    def set_outcome(self, tracked: str, outcome: str) -> None:
        self._answer()
        self.outcomes[tracked] = outcome

    def page_url(self, tracked: str) -> str:
        return ""


def put_segment(store: ObjectStore, attempt: int, number: int, steps: range) -> None:
    points = [MetricPoint(step=s, time_ms=s, metrics={"loss": attempt + s / 100}) for s in steps]
    lines = "".join(point.model_dump_json() + "\n" for point in points)
    store.put(StageKeys("mine", "preprocess").attempt(attempt).segment(number), lines.encode())


def test_every_step_is_told_once_over_attempts_and_outages(store: ObjectStore) -> None:
    tracker = FakeTracker()
    order, spec = by_hand(store, "preprocess")
    shipping = Shipping(tracker, order, spec, store)
    put_segment(store, 1, 0, range(1, 4))
    shipping.ship()
    shipping.ship()
    put_segment(store, 1, 1, range(4, 7))
    tracker.is_down = True
    with pytest.raises(UnreachableError):
        shipping.ship()
    shipping.end(20)
    tracker.is_down = False
    # A second attempt, in another process, does two steps again.
    order, spec = by_hand(store, "preprocess")
    put_segment(store, 2, 0, range(5, 9))
    result = AttemptResult(attempt=2, artefacts=(), metrics={"loss": 2.0})
    keys = StageKeys("mine", "preprocess").attempt(2)
    store.put(keys.result, result.model_dump_json().encode())
    shipping = Shipping(tracker, order, spec, store)
    with shipping.running():
        put_segment(store, 2, 1, range(9, 11))
    shipping.end(0)
    told = tracker.points["s-preprocess"]
    assert [point.step for point in told] == list(range(1, 11))
    assert [int(point.metrics["loss"]) for point in told] == [1] * 6 + [2] * 4
    assert tracker.final == {"s-preprocess": {"loss": 2.0}}
    assert tracker.outcomes == {"s-preprocess": "FINISHED", "r-mine": "RUNNING"}


def test_a_checkpoint_is_told_once_with_where_it_lies(store: ObjectStore) -> None:
    tracker = FakeTracker()
    order, spec = by_hand(store, "preprocess")
    shipping = Shipping(tracker, order, spec, store)
    keys = StageKeys("mine", "preprocess").attempt(1)
    folder = commit(store, 1, 10)
    store.put(keys.manifest(10), store.get(f"{folder}/manifest.json"))
    shipping.ship()
    shipping.ship()
    (told,) = tracker.checkpoints
    assert told["name"] == "preprocess-step-10"
    assert told["uri"] == store.url(keys.checkpoint(10))
    assert told["digest"] == digest_of(store.get(keys.manifest(10)))
    assert (told["step"], told["tokens"]) == ("10", "10")


def test_a_result_that_lacks_what_is_needed_is_not_enough(store: ObjectStore) -> None:
    finish(store, "preprocess", 1, {"corpus": "dataset"})
    with pytest.raises(NotFoundError, match="has made no tokenizer"):
        by_hand(store, "pretrain")
