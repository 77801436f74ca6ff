"""`pipeline=finetune` on a real Ray cluster, stage by stage as by hand: weights of Hugging Face's and an
adapter of PEFT's become a report.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from safetensors.torch import save_file

from octad.data import tokenizer as bpe
from octad.models import decoder
from octad.models.decoder import hugging_face
from octad.spec.stages import StoreSpec
from octad.stages import main
from octad.stages._hand import newest_result
from octad.storage import ObjectStore, lineage
from octad.train.export import groups

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),
]
PLATFORM = Path(__file__).resolve().parents[2] / "platform"
SIZES: dict[str, Any] = {
    "context": 32,
    "width": 16,
    "depth": 2,
    "heads": 2,
    "kv_heads": 2,
    "mlp_width": 24,
}
LLAMA = {"positions": "rotary", "norm": "rmsnorm", "mlp": "swiglu", "bias": False, "tied": False}
VOCAB = 300


@pytest.fixture
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.delenv("RAY_ADDRESS", raising=False)
        ray.init(
            address="local",
            num_cpus=4,
            resources={"card": 8},
            include_dashboard=False,
            object_store_memory=80 * 1024 * 1024,
            runtime_env={"env_vars": {"PYTHONPATH": str(PLATFORM)}},
            _temp_dir=str(tmp_path_factory.mktemp("ray")),
        )
        yield
        ray.shutdown()


def save(folder: Path) -> tuple[Path, Path]:
    """A model in two shards, and an adapter for it, as other tools write them."""
    settings = decoder.Settings.parse({"vocab": VOCAB, **SIZES, **LLAMA})
    torch.manual_seed(0)
    state = {n: 0.1 * torch.randn_like(w) for n, w in decoder.build(settings).state_dict().items()}
    named = {
        theirs: hugging_face.joined(settings, theirs, [state[name] for name in ours])
        for theirs, ours in groups(decoder, settings, state).items()
    }
    base, adapter = folder / "base", folder / "adapter"
    base.mkdir()
    adapter.mkdir()
    where: dict[str, Any] = {}
    for number in (1, 2):
        file = f"model-{number:05d}-of-00002.safetensors"
        held = {name: w for i, (name, w) in enumerate(named.items()) if i % 2 == number - 1}
        save_file(held, base / file)
        where |= dict.fromkeys(held, file)
    (base / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (base / "config.json").write_text(json.dumps(hugging_face.config(settings)))
    (base / "tokenizer.json").write_text(bpe.train(["some words, and some more"], VOCAB))
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora"
    low = {f"{name}_A.weight": torch.randn(2, 16), f"{name}_B.weight": torch.randn(16, 2)}
    save_file(low, adapter / "adapter_model.safetensors")
    return base, adapter


@pytest.mark.usefixtures("_cluster")
def test_somebody_elses_model_is_adapted_and_compared(tmp_path: Path) -> None:
    base, adapter = save(tmp_path)
    store = ObjectStore(StoreSpec(url=(tmp_path / "store").as_uri()))
    overrides = [
        "pipeline=finetune",
        "run=own",
        f"storage.url={store.spec.url}",
        "model=llama_tiny",
        *(f"model.{key}={value}" for key, value in SIZES.items()),
        f"pretrained.weights.path={base}",
        f"pretrained.adapter.path={adapter}",
        "finetune.needs.adapter=pretrained.adapter",
        "finetune.layout.tp=2",
        "finetune.sequence=32",
        "finetune.steps=4",
        "finetune.optimizer.warmup_steps=1",
        "data.limit_bytes=200000",
        "preprocess.cards=1",
        "validate.max_samples=8",
    ]
    results = {}
    for kind in ("pretrained", "preprocess", "finetune", "validate"):
        assert main(kind, overrides) == 0
        result = newest_result(store, "own", kind)
        assert result is not None
        results[kind] = {artefact.name: artefact for artefact in result.artefacts}
    assert set(results["pretrained"]) == {"checkpoint", "tokenizer", "adapter"}
    assert set(results["finetune"]) == {"adapter", "peft"}
    tuned = results["finetune"]["adapter"]
    manifest = lineage.verify(store, store.key(tuned.uri), tuned.digest)
    assert manifest.base == results["pretrained"]["checkpoint"]
    assert manifest.adapter == {"kind": "lora", "rank": 2, "alpha": 4.0, "targets": ["query"]}
    report = newest_result(store, "own", "validate")
    assert report is not None
    assert {"base_corpus_loss", "tuned_corpus_loss", "corpus_gain"} <= set(report.metrics)
    notes = newest_result(store, "own", "finetune")
    assert notes is not None
    assert any("the adapter's own" in note for note in notes.notes)
