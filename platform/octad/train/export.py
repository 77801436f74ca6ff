"""Final weights as other tools read them: safetensors in Hugging Face's naming."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from octad.spec.artefacts import Artefact
from octad.storage.artefacts import publish_folder
from octad.storage.objects import ObjectStore
from octad.train import states
from octad.train.mesh import Ranks
from octad.train.parallelise import Model


def export(  # noqa: PLR0913  where from, and where to
    model: Model,
    family: Any,
    settings: Any,
    ranks: Ranks,
    *,
    tokenizer: Path,
    folder: Path,
    store: ObjectStore,
    key: str,
) -> Artefact | None:
    """Write `model.safetensors`, `config.json` and `tokenizer.json` to the store.

    Every rank must call this; only the first gets the artefact.
    """
    state = states.whole(model)
    if not ranks.is_first:
        return None
    target = folder / "weights"
    target.mkdir()
    named = {name: w.contiguous() for name, w in family.to_hf(settings, state).items()}
    save_file(named, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(family.config_hf(settings), indent=2) + "\n")
    shutil.copyfile(tokenizer / "tokenizer.json", target / "tokenizer.json")
    return publish_folder(store, key, "weights", "weights", target)
