"""On one card: formats, memory and compiled blocks learn what plain fp32 learns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from octad.models.decoder.network import Decoder
from octad.models.decoder.settings import Settings

if TYPE_CHECKING:
    from tests.gpu.conftest import Curve

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
FP8_CAPABILITY = (8, 9)


@pytest.fixture(scope="module")
def plain(curve: Curve) -> list[float]:
    """In fp32."""
    found = curve()
    assert found[-1] < 0.8 * found[0]
    return found


@pytest.mark.parametrize(("kind", "tolerance"), [("bf16", 1e-2), ("fp16", 2e-3), ("fp8", 5e-2)])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_format_learns_what_fp32_learns(
    curve: Curve, plain: list[float], kind: str, tolerance: float, compiled: bool
) -> None:
    if kind == "fp8" and torch.cuda.get_device_capability() < FP8_CAPABILITY:
        pytest.skip("this GPU has no fp8")
    found = curve(precision={"kind": kind}, compile=compiled)
    assert found == pytest.approx(plain, rel=tolerance)
    assert found != plain


@pytest.mark.parametrize(
    "changes",
    [
        {"activation_checkpointing": "selective"},
        {"activation_checkpointing": "full"},
        {"cpu_offload": True},
        {"compile": True, "activation_checkpointing": "selective"},
    ],
    ids=str,
)
def test_memory_and_speed_change_no_curve(
    curve: Curve, plain: list[float], changes: dict[str, Any]
) -> None:
    assert curve(**changes) == pytest.approx(plain, rel=1e-3)


def test_deterministic_training_is_the_same_bit_for_bit(curve: Curve) -> None:
    options: dict[str, Any] = {"deterministic": True, "precision": {"kind": "bf16"}}
    try:
        torch.use_deterministic_algorithms(True)
        assert curve(**options) == curve(**options)
    finally:
        torch.use_deterministic_algorithms(False)


def test_attention_takes_a_flash_kernel_in_bf16() -> None:
    """Without a mask it is the one that is chosen, and it alone is enough."""
    settings = Settings(
        vocab=64, width=128, depth=1, heads=2, kv_heads=1, context=128, positions="rotary"
    )
    with torch.device("cuda"):
        model = Decoder(settings).bfloat16()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    ids = torch.arange(256, device="cuda").reshape(2, 128) % 64
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        model(ids).float().square().mean().backward()
    names = {event.key for event in profile.key_averages()}
    fast = ("_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention")
    assert any(name.endswith(fast) for name in names)
    assert not any(name.endswith("_scaled_dot_product_attention_math") for name in names)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        model(ids).float().square().mean().backward()
