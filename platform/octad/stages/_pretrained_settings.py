"""What taking in weights can be told, and what a laptop sees of them. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from octad.spec.frozen import Spec
from octad.spec.home import expanded
from octad.spec.stages import Url
from octad.spec.tensor_files import ADAPTER_CONFIG, CONFIG, read_json
from octad.train.settings import family_reading, model_values


class _Folder(Spec):
    """A folder that somebody else's tool has written.

    Attributes:
        path: The folder, on the laptop that sends it; of a stage by hand, on the node.
        url: Instead: a folder of the run's own object store.
        snapshot: sha256 in hex of the blob that lists what was sent; goes before `path`.
    """

    path: str | None = None
    url: Url | None = None
    snapshot: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.path and self.url:
            raise ValueError(f"there is a path, {self.path}, and a url, {self.url}: give one")
        return self

    @property
    def label(self) -> str:
        """What people call it; empty if there is none."""
        return self.path or self.url or self.snapshot or ""

    def seen(self, file: str) -> dict[str, Any] | None:
        """A file of the folder, if it lies here."""
        if not self.path:
            return None
        path = expanded(Path(self.path)) / file
        return read_json(path, f"{self.path}/{file}") if path.is_file() else None


class ModelFolder(_Folder):
    """`config.json`, `tokenizer.json` and safetensors, as `save_pretrained` writes them."""

    kind: Literal["hugging_face"] = "hugging_face"


class AdapterFolder(_Folder):
    """`adapter_config.json` and `adapter_model.safetensors`, as PEFT writes them."""

    kind: Literal["peft"] = "peft"


class Settings(Spec):
    """Where the weights lie.

    Attributes:
        weights: Of the model.
        adapter: For it: LoRA or a prefix, if any.
    """

    weights: ModelFolder
    adapter: AdapterFolder = AdapterFolder()

    def model_seen(self) -> dict[str, Any]:
        """What following stages must say of the model, if it can be seen from here.

        Raises:
            ConfigError: `config.json` describes a model that cannot be taken in.
        """
        config = self.weights.seen(CONFIG)
        if config is None:
            return {}
        where = f"{self.weights.path}/{CONFIG}"
        return model_values(family_reading(config, where).hugging_face.settings_of(config, where))

    def adapter_seen(self) -> dict[str, Any]:
        """What following stages must say of the adapter, if it can be seen from here.

        Raises:
            ConfigError: It is of another kind, or has what ours do not.
        """
        adapter, config = self.adapter.seen(ADAPTER_CONFIG), self.weights.seen(CONFIG)
        if adapter is None or config is None:
            return {}
        where = f"{self.adapter.path}/{ADAPTER_CONFIG}"
        peft = family_reading(config, where).peft
        return {"method": peft.kind_of(adapter, where)}
