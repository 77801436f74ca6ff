"""Decoders of GPT-2's and LLaMA's shape, chosen by settings. Fills `octad.ports.models`."""

from octad.models.decoder import hugging_face, peft
from octad.models.decoder.family import add_prefix, blocks, build, parallelise, split
from octad.models.decoder.settings import (
    Settings,
    check,
    flops_per_token,
    init_std,
    layers,
    shared,
    width,
)

__all__ = [
    "Settings",
    "add_prefix",
    "blocks",
    "build",
    "check",
    "flops_per_token",
    "hugging_face",
    "init_std",
    "layers",
    "parallelise",
    "peft",
    "shared",
    "split",
    "width",
]
