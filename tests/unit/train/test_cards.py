"""Peaks by the names that drivers give."""

from __future__ import annotations

import pytest

from octad.train.cards import peak_flops


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H800", 989e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L40", None),
        ("NVIDIA GB200", None),
        ("Ascend910B2", None),
    ],
)
def test_a_peak_is_that_of_the_very_card_or_unknown(device: str, peak: float | None) -> None:
    assert peak_flops(device) == peak
