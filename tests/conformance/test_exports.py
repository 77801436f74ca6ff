"""What `transformers` and `peft` load of an export gives our logits, and the other way round."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from octad.models import decoder
from octad.models.decoder import hugging_face
from octad.models.decoder.settings import Settings
from octad.spec.artefacts import Artefact
from octad.spec.layouts import Layout
from octad.spec.stages import AttemptOrder, StageSpec, StoreSpec
from octad.stages._pretrained_settings import Settings as Folders
from octad.storage import lineage
from octad.storage.objects import ObjectStore
from octad.train.checkpoint import load
from octad.train.export import export, groups
from octad.train.pretrained import take_in
from octad.train.settings import adapter_of, family_of

# peft calls transformers by names that it is about to lose.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
TOLERANCE = 1e-5
GPT2: dict[str, Any] = {"vocab": 61, "context": 24, "width": 32, "depth": 2, "heads": 4}
LLAMA: dict[str, Any] = {
    **GPT2,
    "kv_heads": 2,
    "positions": "rotary",
    "norm": "rmsnorm",
    "mlp": "swiglu",
    "mlp_width": 40,
    "bias": False,
    "norm_eps": 1e-6,
    "rotary_base": 5000.0,
}
SHAPES = {
    "gpt2": {**GPT2, "tied": True},
    "gpt2-untied": {**GPT2, "tied": False, "mlp_width": 48},
    "llama": {**LLAMA, "tied": False},
    "llama-tied": {**LLAMA, "tied": True},
}
LORA = {"kind": "lora", "rank": 3, "alpha": 7.0}
ADAPTERS: dict[str, dict[str, Any]] = {
    "lora": {**LORA, "targets": ["query", "value"]},
    "lora-all": {**LORA, "targets": ["query", "key", "value", "out", "up", "down"]},
    "prefix": {"kind": "prefix", "num_virtual_tokens": 5},
}


def theirs_of(library: str) -> Any:
    """Imported by the one process that needs it: it takes seconds."""
    return importlib.import_module(library)


def drawn(settings: Settings, adapter: dict[str, Any] | None = None) -> nn.Module:
    """A model with weights of a size that nothing hides behind."""
    torch.manual_seed(1)
    model = decoder.build(settings)
    if adapter is not None:
        model.requires_grad_(requires_grad=False)
        kind, own = adapter_of(adapter)
        kind.insert(own, decoder, model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2)
    return model.eval()


def ids() -> Tensor:
    return torch.randint(0, GPT2["vocab"], (2, 13), generator=torch.Generator().manual_seed(2))


def exported(settings: Settings, model: nn.Module, folder: Path) -> Path:
    """The base weights as a folder of Hugging Face's."""
    state = {name: w for name, w in model.state_dict().items() if not _is_added(name)}
    named = {
        theirs: hugging_face.joined(settings, theirs, [state[name] for name in ours])
        for theirs, ours in groups(decoder, settings, state).items()
    }
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(hugging_face.config(settings)))
    return folder


def _is_added(name: str) -> bool:
    return "lora_" in name or "prefix_" in name


def exported_adapter(
    settings: Settings, adapter: dict[str, Any], model: nn.Module, folder: Path
) -> Path:
    state = {name: w for name, w in model.state_dict().items() if _is_added(name)}
    config, tensors = decoder.peft.out_of(settings, adapter, state)
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def largest_difference(ours: nn.Module, theirs: Any) -> float:
    with torch.no_grad():
        found = theirs(input_ids=ids(), use_cache=False).logits
        return float((ours(ids()) - found).abs().max())


@pytest.mark.parametrize("shape", SHAPES)
def test_transformers_gives_the_same_logits(shape: str, tmp_path: Path) -> None:
    settings = Settings.parse(SHAPES[shape])
    model = drawn(settings)
    theirs = theirs_of("transformers").AutoModelForCausalLM.from_pretrained(
        exported(settings, model, tmp_path)
    )
    assert theirs.dtype == torch.float32
    assert largest_difference(model, theirs.eval()) <= TOLERANCE


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("shape", ["gpt2", "llama"])
def test_peft_gives_the_same_logits(shape: str, adapter: str, tmp_path: Path) -> None:
    settings = Settings.parse(SHAPES[shape])
    model = drawn(settings, ADAPTERS[adapter])
    base = theirs_of("transformers").AutoModelForCausalLM.from_pretrained(
        exported(settings, model, tmp_path)
    )
    assert largest_difference(model, base.eval()) > 100 * TOLERANCE
    folder = exported_adapter(settings, ADAPTERS[adapter], model, tmp_path / "adapter")
    theirs = theirs_of("peft").PeftModel.from_pretrained(base, folder)
    with torch.no_grad():
        found = theirs.eval()(input_ids=ids()).logits
        assert float((model(ids()) - found).abs().max()) <= TOLERANCE
    config = json.loads((folder / "adapter_config.json").read_text())
    back, state = decoder.peft.into(
        settings, config, load_file(folder / "adapter_model.safetensors"), "adapter"
    )
    assert back == {"kind": back["kind"], **ADAPTERS[adapter]}
    for name, weight in state.items():
        assert torch.equal(weight, model.get_parameter(name)), name


PART_BYTES = 20_000  # so that weights are taken in by several parts
THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {"n_positions": 24, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    "gpt2-untied": (
        "GPT2",
        {
            "n_positions": 24,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_inner": 48,
            "tie_word_embeddings": False,
        },
    ),
    "llama": (
        "Llama",
        {
            "hidden_size": 32,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 24,
            "rope_theta": 5000.0,
        },
    ),
}
THEIRS["llama-tied"] = ("Llama", {**THEIRS["llama"][1], "tie_word_embeddings": True})


def theirs_drawn(shape: str) -> Any:
    """A model that `transformers` has made."""
    transformers = theirs_of("transformers")
    name, sizes = THEIRS[shape]
    config = getattr(transformers, f"{name}Config")(vocab_size=GPT2["vocab"], **sizes)
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config)
    return _redrawn(model).eval()


def _redrawn(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2)
    return model


def words(folder: Path) -> None:
    """A tokenizer with one token."""
    vocab = {"type": "WordLevel", "vocab": {"<|endoftext|>": 0}, "unk_token": "<|endoftext|>"}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": vocab}))


def taken_in(store: ObjectStore, run: str = "run", **folders: Any) -> dict[str, Artefact]:
    """What the stage gives for folders of this machine."""
    stage = StageSpec(name="own", kind="pretrained", cards=1, layout=Layout(dp_shard=1))
    order = AttemptOrder(run=run, attempt=1, stage=stage, inputs={}, store=store.spec)
    settings = Folders.parse(folders)
    made, _, _ = take_in(order, settings.weights, settings.adapter, PART_BYTES)
    return {artefact.name: artefact for artefact in made}


def opened(store: ObjectStore, checkpoint: Artefact, adapter: Artefact | None = None) -> nn.Module:
    """Our model with the weights of artefacts."""
    key = store.key(checkpoint.uri)
    manifest = lineage.verify(store, key, checkpoint.digest)
    assert manifest.content == "weights"
    family, settings = family_of(manifest.model)
    model: nn.Module = family.build(settings)
    load(store.spec, key, {"model": model.state_dict()}, is_alone=True)
    if adapter is not None:
        own = lineage.verify(store, store.key(adapter.uri), adapter.digest)
        assert own.base == checkpoint
        assert own.adapter is not None
        kind, chosen = adapter_of(own.adapter)
        kind.insert(chosen, family, model)
        added = {name: w for name, w in model.state_dict().items() if _is_added(name)}
        load(store.spec, store.key(adapter.uri), {"model": added}, is_alone=True)
    return model.eval()


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(StoreSpec(url=(tmp_path / "store").as_uri()))


LONG = {"gpt2-untied", "llama-tied", "gpt2-rslora", "llama-lora", "llama-prefix"}


def parted(names: Any) -> list[Any]:
    """Most of it in the long run only."""
    return [pytest.param(n, marks=[pytest.mark.long] if n in LONG else []) for n in names]


@pytest.mark.parametrize("shape", parted(THEIRS))
def test_weights_of_transformers_give_the_same_logits_here(
    shape: str, tmp_path: Path, store: ObjectStore
) -> None:
    """Taken in from shards, exported again, and opened by `transformers` once more."""
    theirs = theirs_drawn(shape)
    folder = tmp_path / "theirs"
    theirs.save_pretrained(folder, max_shard_size="30KB")
    words(folder)
    assert len(list(folder.glob("*.safetensors"))) > 1
    made = taken_in(store, weights={"path": str(folder)})
    assert largest_difference(opened(store, made["checkpoint"]), theirs) <= TOLERANCE
    assert made["tokenizer"].type == "tokenizer"

    out = export(
        store,
        made["checkpoint"],
        tokenizer=folder,
        scratch=tmp_path / "scratch",
        key="out/weights",
        shard_bytes=PART_BYTES,
    )
    again = taken_in(store, "again", weights={"url": out.uri})
    ours = opened(store, again["checkpoint"])
    back = theirs_of("transformers").AutoModelForCausalLM.from_pretrained(
        store.local_path("out/weights")
    )
    assert largest_difference(ours, back.eval()) <= TOLERANCE
    assert largest_difference(ours, theirs) <= TOLERANCE


PEFT_CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2-lora": {"r": 3, "lora_alpha": 7, "target_modules": ["c_attn"], "fan_in_fan_out": True},
    "gpt2-rslora": {
        "r": 2,
        "target_modules": ["c_attn", "c_fc"],
        "use_rslora": True,
        "fan_in_fan_out": True,
        "rank_pattern": {"c_fc": 4},
    },
    "llama-lora": {"r": 3, "lora_alpha": 7, "target_modules": ["q_proj", "v_proj"]},
    "llama-patterns": {
        "r": 4,
        "target_modules": ["k_proj", "gate_proj", "down_proj"],
        "rank_pattern": {"down_proj": 2},
        "alpha_pattern": {"layers.1.mlp.gate_proj": 3},
        "layers_to_transform": [1],
    },
    "gpt2-prefix": {"num_virtual_tokens": 5},
    "llama-prefix": {"num_virtual_tokens": 3},
}


@pytest.mark.parametrize("name", parted(PEFT_CONFIGS))
def test_adapters_of_peft_give_the_same_logits_here(
    name: str, tmp_path: Path, store: ObjectStore
) -> None:
    peft = theirs_of("peft")
    base = theirs_drawn(name.partition("-")[0])
    base.save_pretrained(tmp_path / "base")
    words(tmp_path / "base")
    kind = peft.PrefixTuningConfig if name.endswith("prefix") else peft.LoraConfig
    torch.manual_seed(4)
    theirs = peft.get_peft_model(base, kind(task_type="CAUSAL_LM", **PEFT_CONFIGS[name]))
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.requires_grad:
                parameter.normal_(0.0, 0.2)
    theirs.eval().save_pretrained(tmp_path / "adapter")
    made = taken_in(
        store,
        weights={"path": str(tmp_path / "base")},
        adapter={"path": str(tmp_path / "adapter")},
    )
    plain, tuned = (
        opened(store, made["checkpoint"]),
        opened(store, made["checkpoint"], made["adapter"]),
    )
    with torch.no_grad():
        found = theirs(input_ids=ids()).logits
        assert float((plain(ids()) - found).abs().max()) > 100 * TOLERANCE
        assert float((tuned(ids()) - found).abs().max()) <= TOLERANCE
        out = export(
            store,
            made["adapter"],
            tokenizer=tmp_path / "base",
            scratch=tmp_path / "scratch",
            key="out/peft",
        )
        again = peft.PeftModel.from_pretrained(
            theirs_drawn(name.partition("-")[0]), store.local_path(store.key(out.uri))
        )
        assert float((again.eval()(input_ids=ids()).logits - found).abs().max()) <= TOLERANCE
