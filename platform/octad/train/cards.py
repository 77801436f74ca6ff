"""What cards can do at most."""

from __future__ import annotations

# Dense bf16 FLOP/s by a word of the device's name; the first that is found counts. From the
# makers' datasheets, whose figures with sparsity are halved:
# nvidia.com/en-us/data-center: a100, h100 (PCIe and NVL apart from SXM), h200, l40s, dgx-b200.
# The H800 is an H100 with slower links. Ascend cards are left out: one name stands for several.
_PEAK_FLOPS = (
    ("A100", 312e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("H200", 989e12),
    ("H800", 989e12),
    ("B200", 2250e12),
    ("L40S", 362e12),
)


def peak_flops(device: str) -> float | None:
    """Dense bf16 FLOP/s of a card at most, whatever it computes in; None where it is not known.

    Args:
        device: Its name, as the driver gives it.
    """
    names = (flops for word, flops in _PEAK_FLOPS if word in device and f"G{word}" not in device)
    return next(names, None)
