"""Weights from elsewhere: what a laptop sends, what becomes of it, and everything that is refused."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from octad.compose import compose_run
from octad.data import tokenizer as bpe
from octad.errors import ConfigError, DataError, OctadError
from octad.models import decoder
from octad.models.decoder import hugging_face
from octad.spec.artefacts import Artefact
from octad.spec.checkpoints import StoredFile
from octad.spec.corpora import Snapshot
from octad.spec.keys import blob_key
from octad.spec.layouts import Layout
from octad.spec.stages import AttemptOrder, StageSpec, StoreSpec
from octad.spec.tensor_files import listed, tensors, used
from octad.stages import pretrained
from octad.stages._attempt import Attempt
from octad.stages._spread import in_turn
from octad.storage import ObjectStore, lineage
from octad.storage.artefacts import publish_folder
from octad.train.checkpoint import load
from octad.train.export import groups

SIZES: dict[str, Any] = {"vocab": 261, "context": 8, "width": 8, "depth": 2, "heads": 2}
LLAMA: dict[str, Any] = {
    "kv_heads": 1,
    "positions": "rotary",
    "norm": "rmsnorm",
    "mlp": "swiglu",
    "mlp_width": 12,
    "bias": False,
    "tied": False,
}
QUERY = "model.layers.0.self_attn.q_proj"
LORA = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
TOKENIZER = bpe.train(["a few words, and a few more"], 261)


def state_of(settings: decoder.Settings) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = decoder.build(settings)
    return {name: torch.randn_like(w) for name, w in model.state_dict().items()}


def save(folder: Path, shape: dict[str, Any] = LLAMA) -> Path:
    """A model as Hugging Face has it."""
    folder.mkdir()
    settings = decoder.Settings.parse({**SIZES, **shape})
    state = state_of(settings)
    named = {
        theirs: hugging_face.joined(settings, theirs, [state[name] for name in ours])
        for theirs, ours in groups(decoder, settings, state).items()
    }
    save_file(named, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(hugging_face.config(settings)))
    (folder / "tokenizer.json").write_text(TOKENIZER)
    return folder


def save_adapter(folder: Path) -> Path:
    """One of PEFT's, on the first layer."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(LORA))
    a, b = torch.randn(2, 8), torch.randn(8, 2)
    name = f"base_model.model.{QUERY}"
    tensors_ = {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
    save_file(tensors_, folder / "adapter_model.safetensors")
    return folder


def shard(folder: Path) -> None:
    """Its weights in two files, with an index."""
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    named: dict[str, Any] = {}
    for number in (1, 2):
        file = f"model-{number:05d}-of-00002.safetensors"
        held = {name: w for i, (name, w) in enumerate(sorted(whole.items())) if i % 2 == number - 1}
        save_file(held, folder / file)
        named |= dict.fromkeys(held, file)
    write_index(folder, named)


def write_index(folder: Path, named: dict[str, Any]) -> None:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": named}))


def change_config(folder: Path, file: str = "config.json", **keys: Any) -> None:
    raw = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**raw, **keys}))


def change_weights(
    folder: Path,
    change: Callable[[dict[str, torch.Tensor]], object],
    file: str = "model.safetensors",
) -> None:
    held = load_file(folder / file)
    change(held)
    save_file(held, folder / file)


def change_header(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


class Trial:
    """The stage on a store of its own."""

    def __init__(self, root: Path) -> None:
        self.store = ObjectStore(StoreSpec(url=(root / "store").as_uri()))
        self.root = root

    def run(self, **folders: Any) -> dict[str, Artefact]:
        settings = pretrained.Settings.parse(folders)
        stage = StageSpec(name="own", kind="pretrained", cards=1, layout=Layout(dp_shard=1))
        order = AttemptOrder(run="run", attempt=1, stage=stage, inputs={}, store=self.store.spec)
        context = Attempt(order, None, self.store, self.root / "scratch")
        made, self.metrics = pretrained.prepare(context, settings, in_turn)
        self.notes = context.notes
        return {artefact.name: artefact for artefact in made}

    def send(self, folder: Path, kind: Any = "hugging_face") -> dict[str, Any]:
        """A folder as a laptop gives it to the store."""
        files = []
        for name, path in used(kind, listed(folder, "own"), "own").items():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            self.store.put(blob_key(digest), path.read_bytes())
            size = path.stat().st_size
            files.append(StoredFile(path=name, size=size, digest=f"sha256:{digest}"))
        raw = Snapshot(files=tuple(files)).model_dump_json().encode()
        digest = hashlib.sha256(raw).hexdigest()
        self.store.put(blob_key(digest), raw)
        return {"path": str(folder), "snapshot": digest}

    def weights(self, checkpoint: Artefact) -> dict[str, torch.Tensor]:
        key = self.store.key(checkpoint.uri)
        manifest = lineage.verify(self.store, key, checkpoint.digest)
        family = decoder.build(decoder.Settings.parse(manifest.model)).state_dict()
        state = {name: torch.full_like(w, torch.nan) for name, w in family.items()}
        load(self.store.spec, key, {"model": state}, is_alone=True)
        return state


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tmp_path / "weights")


@pytest.mark.parametrize("is_sharded", [False, True])
def test_a_folder_that_was_sent_becomes_a_checkpoint_and_a_tokenizer(
    trial: Trial, folder: Path, is_sharded: bool
) -> None:
    if is_sharded:
        shard(folder)
    made = trial.run(weights=trial.send(folder))
    assert {a.name: a.type for a in made.values()} == {
        "checkpoint": "checkpoint",
        "tokenizer": "tokenizer",
    }
    wanted = state_of(decoder.Settings.parse({**SIZES, **LLAMA}))
    found = trial.weights(made["checkpoint"])
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        assert torch.equal(found[name], weight), name
    # The very file: datasets name it by its digest.
    key = trial.store.key(made["tokenizer"].uri)
    assert trial.store.get(f"{key}/tokenizer.json") == TOKENIZER.encode()
    assert trial.metrics["parameters"] == sum(w.numel() for w in wanted.values())
    assert trial.notes == ()


def test_half_precision_and_names_without_a_prefix_are_read(trial: Trial, tmp_path: Path) -> None:
    """As the files of the first GPT-2, which also hold masks."""
    folder = save(tmp_path / "weights", {})

    def shorten(held: dict[str, torch.Tensor]) -> None:
        for name in list(held):
            held[name.removeprefix("transformer.")] = held.pop(name).bfloat16()
        held["h.0.attn.bias"] = torch.ones(1, 1, 8, 8, dtype=torch.uint8)

    change_weights(folder, shorten)
    found = trial.weights(trial.run(weights={"path": str(folder)})["checkpoint"])
    for name, weight in state_of(decoder.Settings.parse(SIZES)).items():
        assert torch.equal(found[name], weight.bfloat16().float()), name


def test_tied_weights_may_be_there_twice_if_they_are_the_same(trial: Trial, tmp_path: Path) -> None:
    folder = save(tmp_path / "weights", {})
    wte = "transformer.wte.weight"
    change_weights(folder, lambda held: held.update({"lm_head.weight": held[wte].clone()}))
    assert "checkpoint" in trial.run(weights={"path": str(folder)})
    change_weights(folder, lambda held: held["lm_head.weight"].zero_())
    with pytest.raises(DataError, match=r"ties lm_head.weight to transformer.wte.weight, but they"):
        trial.run(weights={"path": str(folder)})


def test_a_folder_of_the_store_is_checked_by_its_manifest(trial: Trial, folder: Path) -> None:
    made = publish_folder(trial.store, "out/weights", "weights", "weights", folder)
    assert "checkpoint" in trial.run(weights={"url": made.uri})
    assert trial.notes == ()
    path = trial.store.local_path("out/weights/config.json")
    assert path is not None
    path.write_text(path.read_text() + " ")
    with pytest.raises(DataError, match=r"config.json.*bytes"):
        trial.run(weights={"url": made.uri})


def test_a_folder_of_the_store_without_digests_is_noted(trial: Trial, folder: Path) -> None:
    for path in folder.iterdir():
        trial.store.put_file(f"mine/{path.name}", path)
    assert "checkpoint" in trial.run(weights={"url": trial.store.url("mine")})
    assert "no digest to check its files against" in trial.notes[0]
    with pytest.raises(DataError, match="no such folder"):
        trial.run(weights={"url": trial.store.url("other")})
    with pytest.raises(ConfigError, match="does not lie in the store"):
        trial.run(weights={"url": "s3://elsewhere/mine"})


def test_what_was_sent_and_changed_since_is_refused(trial: Trial, folder: Path) -> None:
    block = trial.send(folder)
    digest = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    trial.store.put(blob_key(digest), b"{}")
    with pytest.raises(DataError, match=r"config.json: was changed: its digest is wrong"):
        trial.run(weights=block)
    trial.store.delete([blob_key(digest)])
    with pytest.raises(DataError, match=r"config.json: was not sent whole"):
        trial.run(weights=block)
    trial.store.put(blob_key(block["snapshot"]), b"{}")
    with pytest.raises(DataError, match="list of what was sent was changed"):
        trial.run(weights=block)


# --- folders that are refused


def _without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _lost_shard(folder: Path) -> None:
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def _lost_index(folder: Path) -> None:
    shard(folder)
    (folder / "model.safetensors.index.json").unlink()


def _indexed(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        shard(folder)
        named = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
        write_index(folder, {**named, **changes})

    return change


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def _written(raw: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "model.safetensors").write_bytes(raw)


def _unindexed(folder: Path) -> None:
    shard(folder)
    write_index(folder, {})


def _header(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    return lambda folder: change_header(folder, change)


def _overlap(header: dict[str, Any]) -> None:
    first, second = sorted(
        (name for name in header if name != "__metadata__"),
        key=lambda name: header[name]["data_offsets"],
    )[:2]
    begin, end = header[second]["data_offsets"]
    start = header[first]["data_offsets"][0] + 4
    header[second]["data_offsets"] = [start, start + end - begin]


def _weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    return lambda folder: change_weights(folder, change)


def _config(**keys: Any) -> Callable[[Path], None]:
    return lambda folder: change_config(folder, **keys)


def _twice(folder: Path) -> None:
    text = b'{"a": 1, "a": 2}'
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


QUERY_WEIGHT = f"{QUERY}.weight"
# What a laptop sees by names and headers.
SEEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "pickle": (_pickled, "pytorch_model.bin may run code when it is opened"),
    "no config": (_without("config.json"), "there is no config.json"),
    "no tokenizer": (_without("tokenizer.json"), "no tokenizer.json; .*save_pretrained"),
    "no weights": (_without("model.safetensors"), "there is no model.safetensors$"),
    "lost shard": (_lost_shard, "names model-00002-of-00002.safetensors, which is not there"),
    "lost index": (_lost_index, "no model.safetensors.index.json for model-00001"),
    "outside": (_indexed(x="../x.safetensors"), r"x lies in '../x.safetensors', outside"),
    "absolute": (_indexed(x="/etc/x.safetensors"), r"x lies in '/etc/x.safetensors', outside"),
    "no file": (_indexed(x=3), "x lies in 3, no .safetensors file"),
    "pickled shard": (_indexed(x="x.bin"), "x lies in 'x.bin', no .safetensors file"),
    "in the other": (
        _indexed(**{QUERY_WEIGHT: "model-00001-of-00002.safetensors"}),
        f"{QUERY_WEIGHT} lies in .*00002-of-00002.*, but .* says .*00001-of-00002",
    ),
    "in none": (
        _indexed(x="model-00002-of-00002.safetensors"),
        "x lies in no file, but .*index.json says",
    ),
    "empty index": (_unindexed, "no weight_map"),
    "empty": (_written(b""), "no safetensors file: it has 0 bytes"),
    "long header": (
        _written(struct.pack("<Q", 1 << 40) + b"{}"),
        "header would have 1099511627776",
    ),
    "no json": (_written(struct.pack("<Q", 2) + b"{["), "header is not a JSON object"),
    "a list": (_written(struct.pack("<Q", 2) + b"[]"), "not a JSON object: it is a list"),
    "a key twice": (_twice, "'a' is there twice"),
    "cut": (_cut, "its tensors take .* bytes, but it has"),
    "overlap": (_header(_overlap), "overlaps with another tensor"),
    "no dtype": (_header(lambda h: h[QUERY_WEIGHT].pop("dtype")), "needs a dtype"),
    "odd dtype": (
        _header(lambda h: h[QUERY_WEIGHT].update(dtype="F3")),
        "unknown dtype, 'F3'",
    ),
    "negative": (_header(lambda h: h[QUERY_WEIGHT].update(shape=[-8, -8])), "has the shape"),
    "larger": (_header(lambda h: h[QUERY_WEIGHT].update(shape=[8, 9])), "takes 288 bytes, but has"),
}
# What it takes the model, or the weights themselves, to see.
UNSEEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (_weights(lambda held: held.pop(QUERY_WEIGHT)), f"there is no {QUERY_WEIGHT}"),
    "extra": (
        _weights(lambda held: held.update(own=torch.ones(2))),
        "the model has no place for own",
    ),
    "shape": (
        _weights(lambda held: held.update({QUERY_WEIGHT: torch.ones(4, 16)})),
        rf"{QUERY_WEIGHT} has the shape \(4, 16\), not \(8, 8\)",
    ),
    "dtype": (
        _weights(lambda held: held.update({QUERY_WEIGHT: torch.ones(8, 8, dtype=torch.int8)})),
        f"{QUERY_WEIGHT} is I8, no format of weights",
    ),
    "not finite": (
        _weights(lambda held: held[QUERY_WEIGHT].fill_(torch.nan)),
        f"{QUERY_WEIGHT} holds values that are not finite",
    ),
    "prefix twice": (
        _weights(lambda held: held.update({"norm.weight": held["model.norm.weight"].clone()})),
        "are model.norm.weight",
    ),
    "other depth": (_config(num_hidden_layers=3), r"there is no model.layers.2"),
    "no depth": (_config(num_hidden_layers=10**9), "1000000000 blocks, but there are"),
    "few tokens": (_config(vocab_size=9), r"model.embed_tokens.weight has the shape"),
    "many tokens": (
        lambda folder: (folder / "tokenizer.json").write_text(
            json.dumps(
                {
                    "version": "1.0",
                    "model": {
                        "type": "WordLevel",
                        "vocab": {"</s>": 261},
                        "unk_token": "</s>",
                    },
                }
            )
        ),
        "has 262 tokens, but the model has 261",
    ),
    "no tokens": (
        lambda folder: (folder / "tokenizer.json").write_text("{}"),
        "tokenizer.json: not a tokenizer",
    ),
}
CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "another": ({"model_type": "bert"}, "model_type is 'bert'.*gpt2, llama"),
    "rope": ({"rope_scaling": {"type": "linear"}}, "rope_scaling is"),
    "rope kind": (
        {"rope_parameters": {"rope_type": "yarn"}},
        "rope_parameters.rope_type is 'yarn'",
    ),
    "partial": (
        {"rope_parameters": {"partial_rotary_factor": 0.5}},
        "partial_rotary_factor is 0.5",
    ),
    "quantised": ({"quantization_config": {"bits": 4}}, "quantization_config is"),
    "bias": ({"attention_bias": True}, "attention_bias is True"),
    "heads": ({"num_attention_heads": 0}, "a value that cannot be"),
    "text": ({"hidden_size": "eight"}, "a value that cannot be"),
    "rope text": ({"rope_parameters": {"rope_theta": "far"}}, "a value that cannot be"),
    "list": ({"rope_parameters": [1]}, "a value that cannot be"),
    "vocab": ({"vocab_size": None}, "a value that cannot be"),
    "float": ({"num_hidden_layers": 1.5}, "depth: must be a valid integer"),
}


def one_line(error: OctadError) -> str:
    assert "\n" not in str(error)
    return str(error)


@pytest.mark.parametrize("case", SEEN)
def test_a_laptop_refuses_a_folder_before_it_is_sent(folder: Path, case: str) -> None:
    spoil, reason = SEEN[case]
    spoil(folder)
    with pytest.raises(DataError, match=reason) as caught:
        tensors(used("hugging_face", listed(folder, "own.path"), str(folder)), str(folder))
    assert str(folder) in one_line(caught.value)


@pytest.mark.parametrize("case", [*SEEN, *UNSEEN])
def test_the_stage_refuses_it(trial: Trial, folder: Path, case: str) -> None:
    spoil, reason = (SEEN | UNSEEN)[case]
    spoil(folder)
    with pytest.raises(DataError, match=reason) as caught:
        trial.run(weights={"path": str(folder)})
    assert str(folder) in one_line(caught.value)
    # Nothing that looks like a checkpoint is left behind.
    assert not [m for m in trial.store.walk("runs/") if m.key.endswith("manifest.json")]


@pytest.mark.parametrize("case", CONFIGS)
def test_a_model_that_cannot_be_computed_is_refused_where_it_is_composed(
    trial: Trial, folder: Path, case: str
) -> None:
    keys, reason = CONFIGS[case]
    change_config(folder, **keys)
    settings = pretrained.Settings.parse({"weights": {"path": str(folder)}})
    with pytest.raises(ConfigError, match=reason) as caught:
        pretrained.gives(settings)
    assert "config.json" in one_line(caught.value)
    with pytest.raises(ConfigError, match=reason):
        trial.run(weights={"path": str(folder)})


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"pretrained.weights.path: .*/none is not there"):
        listed(tmp_path / "none", "pretrained.weights.path")


# --- adapters


def test_an_adapter_is_for_the_weights_it_came_with(trial: Trial, folder: Path) -> None:
    adapter = save_adapter(folder.with_name("adapter"))
    made = trial.run(weights=trial.send(folder), adapter=trial.send(adapter, "peft"))
    key = trial.store.key(made["adapter"].uri)
    manifest = lineage.verify(trial.store, key, made["adapter"].digest)
    assert manifest.base == made["checkpoint"]
    assert manifest.adapter == {"kind": "lora", "rank": 2, "alpha": 4.0, "targets": ["query"]}


ADAPTER = "adapter_model.safetensors"
LORA_A = f"base_model.model.{QUERY}.lora_A.weight"
ADAPTER_KEYS: dict[str, Any] = {
    "peft_type": "IA3",
    "bias": "all",
    "use_dora": True,
    "lora_bias": True,
    "modules_to_save": ["lm_head"],
    "layer_replication": [[0, 1]],
    "target_parameters": ["x"],
    "trainable_token_indices": [1],
    "alora_invocation_tokens": [1],
    "use_qalora": True,
    "r": "2",
    "lora_alpha": 0,
    "rank_pattern": {"(a+)+": 2},
    "alpha_pattern": {"[": 2},
}


def _adapter_config(**keys: Any) -> Callable[[Path], object]:
    return lambda folder: change_config(folder, "adapter_config.json", **keys)


ADAPTERS: dict[str, tuple[Callable[[Path], object], str]] = {
    **{
        key: (_adapter_config(**{key: value}), f"{key} (is|has)")
        for key, value in ADAPTER_KEYS.items()
    },
    "another rank": (
        lambda folder: change_config(folder, "adapter_config.json", r=3),
        r"lora_A of .* is \(2, 8\), but its rank is 3",
    ),
    "another layer": (
        lambda folder: change_weights(
            folder,
            lambda held: held.update({"base_model.model.x.lora_A.weight": torch.ones(2)}),
            ADAPTER,
        ),
        "no place for base_model.model.x.lora_A.weight",
    ),
    "another width": (
        lambda folder: change_weights(
            folder, lambda held: held.update({LORA_A: torch.ones(2, 9)}), ADAPTER
        ),
        r"\(2, 9\)",
    ),
    "a vector": (
        lambda folder: change_weights(
            folder, lambda held: held.update({LORA_A: torch.ones(2)}), ADAPTER
        ),
        r"is \(2,\), but its rank is 2",
    ),
    "dtype": (
        lambda folder: change_weights(
            folder, lambda held: held.update({LORA_A: torch.ones(2, 8, dtype=torch.int8)}), ADAPTER
        ),
        "is I8, no format of weights",
    ),
    "half": (
        lambda folder: change_weights(folder, lambda held: held.pop(LORA_A), ADAPTER),
        "no place for .*lora_B",
    ),
    "pickle": (
        lambda folder: (folder / ADAPTER).rename(folder / "adapter_model.bin"),
        "adapter_model.bin may run code",
    ),
    "no config": (_without("adapter_config.json"), "there is no adapter_config.json"),
}


@pytest.mark.parametrize("case", ADAPTERS)
def test_an_adapter_that_cannot_be_put_on_is_refused(trial: Trial, folder: Path, case: str) -> None:
    adapter = save_adapter(folder.with_name("adapter"))
    spoil, reason = ADAPTERS[case]
    spoil(adapter)
    with pytest.raises((ConfigError, DataError), match=reason) as caught:
        trial.run(weights={"path": str(folder)}, adapter={"path": str(adapter)})
    assert str(adapter) in one_line(caught.value)
    assert not [m for m in trial.store.walk("runs/") if m.key.endswith("manifest.json")]


# --- what follows


FITTING = [
    "pipeline=finetune",
    "model=llama_tiny",
    *(f"model.{key}={SIZES[key]}" for key in ("context", "width", "depth", "heads")),
    "model.kv_heads=1",
    "model.mlp_width=12",
    "finetune.sequence=8",
    "finetune.lora.rank=4",
]


def test_stages_that_follow_must_have_its_model(folder: Path) -> None:
    path = f"pretrained.weights.path={folder}"
    assert compose_run([*FITTING, path]).stages
    assert compose_run([*FITTING, path, "model.vocab=261"]).stages
    with pytest.raises(ConfigError) as caught:
        compose_run([*FITTING, path, "model.depth=3", "model.norm_eps=1e-6"])
    assert one_line(caught.value) == (
        "finetune.model.depth: pretrained.checkpoint has depth 2, not 3; "
        "set finetune.model.depth=2 finetune.model.norm_eps=1e-05"
    )
    with pytest.raises(ConfigError, match=r"finetune.model.vocab: .* has vocab 261, not 300"):
        compose_run([*FITTING, path, "model.vocab=300"])
    other = save(folder.with_name("gpt"), {})
    with pytest.raises(
        ConfigError, match=r"has kv_heads 2, not 1; set .*positions=learned .*model.bias=true"
    ):
        compose_run([*FITTING, f"pretrained.weights.path={other}"])


def test_the_setting_it_names_mends_it(folder: Path) -> None:
    typed = [*FITTING, f"pretrained.weights.path={folder}", "model.depth=3", "model.norm_eps=1e-6"]
    with pytest.raises(ConfigError) as caught:
        compose_run(typed)
    assert compose_run([*typed, *caught.value.hint.removeprefix("set ").split()]).stages


def test_an_adapter_that_is_given_decides_the_method(folder: Path) -> None:
    adapter = save_adapter(folder.with_name("adapter"))
    typed = [
        *FITTING,
        f"pretrained.weights.path={folder}",
        f"pretrained.adapter.path={adapter}",
        "finetune.needs.adapter=pretrained.adapter",
    ]
    # Its rank is its own, so that of the stage may be any.
    assert compose_run([*typed, "finetune.lora.rank=999"]).stages
    with pytest.raises(ConfigError, match=r"finetune.method: .* has method lora, not prefix"):
        compose_run([*typed, "finetune.method=prefix"])
    with pytest.raises(ConfigError, match="takes no 'adapter'"):
        compose_run([*typed, "finetune.method=full", "validate.needs.adapter=pretrained.adapter"])


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ([], "pretrained.weights.path: there are no weights"),
        (["pretrained.weights.path=/a", "pretrained.weights.url=s3://b/c"], "give one"),
        (["pretrained.weights.path=/a", "pretrained.cards=2"], "pretrained.cards: 2 cards"),
        (["pretrained.weights.url=https://me:secret@host/a"], "must hold no password"),
        (["pretrained.weights.snapshot=0"], "pretrained.weights.snapshot"),
    ],
)
def test_settings_that_cannot_be(overrides: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        compose_run(["pipeline=finetune", *overrides])


def test_pretraining_can_go_on_from_it(folder: Path, tmp_path: Path) -> None:
    pipeline = tmp_path / "conf" / "pipeline" / "own.yaml"
    pipeline.parent.mkdir(parents=True)
    pipeline.write_text("""# @package _global_
defaults:
  - /stage@pretrained: pretrained
  - /stage@preprocess: preprocess
  - /stage@pretrain: pretrain
  - _self_
pipeline: {name: own, stages: [pretrained, preprocess, pretrain]}
preprocess: {needs: {tokenizer: pretrained.tokenizer}}
pretrain:
  sequence: 8
  needs:
    base: pretrained.checkpoint
    corpus: preprocess.corpus
    tokenizer: pretrained.tokenizer
""")
    sizes = [word for word in FITTING if word.startswith("model")]
    typed = ["pipeline=own", *sizes, f"pretrained.weights.path={folder}"]
    assert compose_run(typed, tmp_path / "conf").stages
    with pytest.raises(ConfigError, match=r"pretrain.model.width: .* has width 8, not 16"):
        compose_run([*typed, "model.width=16"], tmp_path / "conf")
