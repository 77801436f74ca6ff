"""Weights of a mix of datasets, in whole samples. No numpy: laptops load it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from octad.errors import ConfigError

_MOST_SAMPLES = 10_000


def shares(mix: Mapping[str, float], where: str = "mix") -> dict[str, int]:
    """The fewest whole samples of each dataset that are exactly as the weights say; by name.

    0.7 and 0.3 are 7 and 3. Sorted, so that nothing hangs on the order in a file.

    Raises:
        ConfigError: They add up to more than 10,000.
    """
    weights = {name: Fraction(repr(mix[name])) for name in sorted(mix)}
    whole = math.lcm(*(weight.denominator for weight in weights.values()))
    counts = {name: int(weight * whole) for name, weight in weights.items()}
    divisor = math.gcd(*counts.values())
    counts = {name: count // divisor for name, count in counts.items()}
    if sum(counts.values()) > _MOST_SAMPLES:
        raise ConfigError(
            f"these weights are only exact in {sum(counts.values())} samples, more than "
            f"{_MOST_SAMPLES}",
            where=where,
            hint="use weights with fewer digits, such as 0.7 and 0.3, or 7 and 3",
        )
    return counts
