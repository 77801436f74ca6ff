"""Decoders of GPT-2's and LLaMA's shape, chosen by settings. Fills `octad.ports.models`."""

from octad.models.decoder.family import build, config_hf, parallelise, to_hf
from octad.models.decoder.settings import Settings, check, init_std, layers

__all__ = [
    "Settings",
    "build",
    "check",
    "config_hf",
    "init_std",
    "layers",
    "parallelise",
    "to_hf",
]
