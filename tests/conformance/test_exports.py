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
from octad.train.export import groups
from octad.train.settings import adapter_of

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
