"""Decoders of GPT-2's and LLaMA's shape, chosen by settings. Fills `octad.ports.models`."""

from octad.models.decoder.family import blocks, build, config_hf, parallelise, split, to_hf
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
    "blocks",
    "build",
    "check",
    "config_hf",
    "flops_per_token",
    "init_std",
    "layers",
    "parallelise",
    "shared",
    "split",
    "to_hf",
    "width",
]
