"""The functions of `octad.ports.models`; torch is imported when they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octad.models.decoder.settings import Settings

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


def build(settings: Settings) -> nn.Module:
    """The module, on the current default device, its weights not yet set."""
    from octad.models.decoder.network import Decoder  # noqa: PLC0415

    return Decoder(settings)


def blocks(model: Any) -> list[nn.Module]:
    """The pieces that are sharded, checkpointed and compiled one by one, in order."""
    return list(model.blocks.values())


def split(model: Any, part: int, parts: int) -> None:
    """Keep one of `parts` runs of blocks, in place, for pipeline parallelism."""
    from octad.models.decoder import network  # noqa: PLC0415

    network.split(model, part, parts)


def add_prefix(part: Any, tokens: int) -> None:
    """Learned keys and values that all tokens see, in every attention, in place."""
    from octad.models.decoder import network  # noqa: PLC0415

    network.add_prefix(part, tokens)


def parallelise(model: Any, tp: DeviceMesh) -> None:
    """Tensor and sequence parallelism over one mesh axis, in place."""
    from octad.models.decoder.sharding import shard  # noqa: PLC0415

    shard(model, tp)
