"""What a training stage is given is checked by its driver, before any worker starts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octad.errors import CheckpointError, ConfigError, DataError
from octad.spec.artefacts import Artefact
from octad.spec.checkpoints import DataPosition, Manifest
from octad.spec.keys import StageKeys
from octad.spec.layouts import Layout
from octad.spec.stages import AttemptOrder, Position, StageSpec, StoreSpec
from octad.storage.artefacts import publish_folder, stored_file
from octad.storage.objects import ObjectStore
from octad.train import stage
from octad.train.settings import Training, TrainingJob

SETTINGS: dict[str, Any] = {
    "model": {"kind": "decoder", "width": 8, "depth": 1, "heads": 1, "context": 16},
    "optimizer": {"lr": 1e-3},
    "steps": 20,
    "sequence": 16,
    "global_batch": 2,
}


class StartedError(Exception):
    """The workers would have started now."""


class Trial:
    """A store with inputs, and a driver."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = ObjectStore(StoreSpec(url=(folder / "store").as_uri()))
        self.started: list[TrainingJob] = []

    def tokenizer(self, text: str = "{}", name: str = "tokenizer") -> Artefact:
        made = self.folder / name
        made.mkdir()
        (made / "tokenizer.json").write_text(text)
        return publish_folder(self.store, f"data/{name}", name, "tokenizer", made)

    def dataset(self, name: str, words: Artefact, *, vocab: int = 50) -> Artefact:
        made = self.folder / name
        made.mkdir()
        digest = stored_file("", self.folder / words.name / "tokenizer.json").digest
        (made / "dataset.json").write_text(json.dumps({"vocab": vocab, "tokenizer": digest}))
        (made / "train-00000.arrow").write_bytes(name.encode() * 9)
        return publish_folder(self.store, f"data/{name}", name, "dataset", made)

    def train(
        self,
        datasets: dict[str, Artefact],
        tokenizer: Artefact | None,
        *,
        base: Position | None = None,
        seed: int = 0,
        **changes: Any,
    ) -> TrainingJob:
        """The job that the workers are given."""
        spec = StageSpec(name="pretrain", kind="pretrain", cards=1, layout=Layout(dp_shard=1))
        order = AttemptOrder(
            run="run", attempt=2, stage=spec, inputs={}, store=self.store.spec, seed=seed
        )
        context: Any = SimpleNamespace(order=order, base=base, store=self.store)
        training = Training.parse({**SETTINGS, **changes})
        with pytest.raises(StartedError):
            stage.train_stage(context, training, datasets=datasets, tokenizer=tokenizer)
        return self.started[-1]


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    made = Trial(tmp_path)

    def on_workers(context: Any, function: str, job: dict[str, Any]) -> None:
        made.started.append(TrainingJob.parse(job))
        raise StartedError(function)

    monkeypatch.setattr(stage, "on_workers", on_workers)
    return made


def test_what_fits_is_started_with_the_largest_vocabulary(trial: Trial) -> None:
    words = trial.tokenizer()
    datasets = {"a": trial.dataset("a", words), "b": trial.dataset("b", words, vocab=60)}
    job = trial.train(datasets, words, mix={"a": 1, "b": 2})
    assert job.training.model["vocab"] == 60
    assert job.datasets == datasets


def test_a_vocabulary_that_does_not_hold_the_tokenizers_is_refused(trial: Trial) -> None:
    words = trial.tokenizer()
    model = {**SETTINGS["model"], "vocab": 49}
    with pytest.raises(ConfigError, match=r"pretrain\.model\.vocab: the model has 49 .* with 50"):
        trial.train({"corpus": trial.dataset("corpus", words)}, words, model=model)


def test_data_of_another_tokenizer_is_refused(trial: Trial) -> None:
    words, other = trial.tokenizer(), trial.tokenizer("{ }", "other")
    corpus, more = trial.dataset("corpus", words), trial.dataset("more", other)
    with pytest.raises(DataError, match=r"pretrain\.needs\.corpus: corpus was not made with the"):
        trial.train({"corpus": corpus}, other)
    with pytest.raises(DataError, match="b was not made with the tokenizer of a"):
        trial.train({"a": corpus, "b": more}, None, mix={"a": 1, "b": 1})
    trial.train({"corpus": corpus}, None)


@pytest.mark.parametrize("damage", ["missing", "cut", "manifest", "dataset.json"])
def test_a_damaged_dataset_is_refused_by_the_name_of_its_file(trial: Trial, damage: str) -> None:
    words = trial.tokenizer()
    corpus = trial.dataset("corpus", words)
    name = {"manifest": "manifest.json", "dataset.json": damage}.get(damage, "train-00000.arrow")
    key = f"data/corpus/{name}"
    if damage == "missing":
        trial.store.delete([key])
    else:
        trial.store.put(key, trial.store.get(key)[:-1])
    with pytest.raises(DataError) as caught:
        trial.train({"corpus": corpus}, words)
    assert caught.value.where == (corpus.uri if damage == "manifest" else trial.store.url(key))


def commit(trial: Trial, job: TrainingJob) -> Position:
    """A checkpoint of the attempt before, as that job would have left it."""
    at = Position(attempt=1, step=7)
    manifest = Manifest(
        content="full",
        run="run",
        stage="pretrain",
        position=at,
        tokens=1,
        data=DataPosition(fingerprint=job.fingerprint, seed=job.order.seed, samples=14),
        layout=Layout(dp_shard=1),
        dtype="float32",
        model={},
        model_digest="",
        files=(),
    )
    key = StageKeys("run", "pretrain").attempt(1).manifest(7)
    trial.store.put(key, manifest.model_dump_json().encode())
    return at


def test_a_checkpoint_goes_on_with_the_same_data_only(trial: Trial) -> None:
    words = trial.tokenizer()
    datasets = {"a": trial.dataset("a", words), "b": trial.dataset("b", words)}
    other = {**datasets, "b": trial.dataset("c", words)}
    mix = {"a": 1, "b": 2}
    base = commit(trial, trial.train(datasets, words, mix=mix))
    trial.train(datasets, words, mix={"b": 0.4, "a": 0.2}, base=base)
    for data, changes in (
        (other, {"mix": mix}),
        (datasets, {"mix": {"a": 2, "b": 1}}),
        (datasets, {"mix": mix, "sequence": 8}),
    ):
        with pytest.raises(CheckpointError, match="other data") as caught:
            trial.train(data, words, base=base, **changes)
        assert "step-" in caught.value.where
        assert data["b"].uri in caught.value.what
    with pytest.raises(CheckpointError, match="seed 0, not 1"):
        trial.train(datasets, words, mix=mix, base=base, seed=1)
