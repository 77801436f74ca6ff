"""In which number format a model computes and sums.

| | fp32 | bf16 | fp16 | fp8 |
|---|---|---|---|---|
| weights, optimizer state, checkpoints | fp32 | fp32 | fp32 | fp32 |
| matrix products of blocks | fp32 | bf16 | fp16 | fp8 |
| activations, embedding, output layer, attention | fp32 | bf16 | fp16 | bf16 |
| sums inside of norms, softmax and products | fp32 | fp32 | fp32 | fp32 |
| loss | fp32 | fp32 | fp32 | fp32 |
| gradients between cards, norm, clipping | fp32 | fp32 | fp32 | fp32 |

FSDP casts weights, on every layout: also over a mesh of one card, and where weights are only
replicated. So the same numbers are rounded in the same places everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from octad.errors import ConfigError
from octad.train.settings import Precision

_COMPUTE = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
_FP8_CAPABILITY = (8, 9)  # Ada and later
_LEAST_SCALE = 1.0


def policy(precision: Precision) -> MixedPrecisionPolicy:
    """How FSDP casts: weights for compute, and gradients back for their sums."""
    compute = _COMPUTE.get(precision.kind)
    if compute is None:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)


def convert(blocks: Iterable[nn.Module], precision: Precision, device: torch.device) -> None:
    """Let the linear layers of blocks multiply in fp8 if that is asked for, in place.

    Each call scales its operands by their largest value: of a whole tensor, or of a row. Weights
    keep their names and formats. Call it before the blocks are split over `tp`.

    Raises:
        ConfigError: The card cannot, or torchao is missing.
    """
    if precision.kind != "fp8":
        return
    if not precision.emulate:
        _check_card(device)
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            "fp8 needs torchao, which is not installed",
            where="precision.kind",
            hint="install octad[fp8] on the nodes, or use precision=bf16",
        ) from None
    config = Float8LinearConfig.from_recipe_name(precision.recipe)
    config = replace(config, emulate=precision.emulate)
    for block in blocks:
        convert_to_float8_training(block, config=config)


def _check_card(device: torch.device) -> None:
    if device.type != "cuda":
        raise ConfigError(
            f"a {'sim' if device.type == 'cpu' else device.type} card has no fp8",
            where="precision.kind",
            hint="use precision=bf16; precision.emulate=true computes what fp8 would, slowly",
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < _FP8_CAPABILITY:
        raise ConfigError(
            f"{torch.cuda.get_device_name(device)} has no fp8: it has compute capability "
            f"{capability[0]}.{capability[1]}, fp8 needs 8.9",
            where="precision.kind",
            hint="use precision=bf16",
        )


@dataclass(slots=True)
class LossScale:
    """By what the loss is multiplied so that small gradients are not lost in fp16.

    Dynamic (Micikevicius et al. 2018): half of it after a step whose gradients are not finite,
    which changes nothing; twice of it after `growth_steps` steps in a row that are. Whether they
    are is read off the norm of the whole gradient, which every process knows: all of them skip
    the same steps.

    Attributes:
        scale: For the next step.
        num_good: Steps in a row with finite gradients since the scale last changed.
        num_skipped: Steps without them so far.
    """

    growth_steps: int
    scale: float
    num_good: int = 0
    num_skipped: int = 0

    @classmethod
    def of(cls, precision: Precision) -> LossScale | None:
        """Where the format needs one."""
        if precision.kind != "fp16":
            return None
        return cls(precision.growth_steps, precision.initial_scale)

    def update(self, *, is_finite: bool) -> bool:
        """After a step's gradients are known. False if no scale would make them finite."""
        if is_finite:
            self.num_good += 1
            if self.num_good == self.growth_steps:
                self.scale, self.num_good = 2 * self.scale, 0
            return True
        if self.scale <= _LEAST_SCALE:
            return False
        self.num_skipped += 1
        self.scale, self.num_good = max(_LEAST_SCALE, self.scale / 2), 0
        return True

    def state(self) -> Tensor:
        """What a checkpoint keeps."""
        return torch.tensor([self.scale, self.num_good, self.num_skipped], dtype=torch.float64)

    def restore(self, state: Tensor) -> None:
        """Go on from what `state` gave."""
        scale, good, skipped = state.tolist()
        self.scale, self.num_good, self.num_skipped = scale, int(good), int(skipped)

    def metrics(self) -> dict[str, float]:
        """Of the next step, and steps skipped so far."""
        return {"loss_scale": self.scale, "skipped_steps": float(self.num_skipped)}
