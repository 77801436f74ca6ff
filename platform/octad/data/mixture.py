"""The order of samples of several datasets, mixed by weight: computed and never stored.

Positions are cut into rounds. Of every round each dataset gets exactly its share, at places that
a keyed permutation of the round gives; its own samples come in its own order. What stands at a
position follows from the seed and the position alone, as for one dataset.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from octad.data.sampler import Indices, Order

# Enough positions that keying a round costs little for each of them.
_ROUND_SAMPLES = 1024


class MixedOrder:
    """Which sample of which dataset comes when.

    Indices count the samples of all datasets, one dataset after the other, as they are given.

    Args:
        sizes: Samples of each dataset, by name.
        weights: Of as many samples as these add up to, how many each dataset gives.
        seed: Another seed is another order.
    """

    def __init__(self, sizes: Mapping[str, int], weights: Mapping[str, int], seed: int) -> None:
        scale = max(1, _ROUND_SAMPLES // sum(weights.values()))
        self._quotas = np.array([weights[name] * scale for name in sizes], np.int64)
        self._owners = np.repeat(np.arange(len(sizes)), self._quotas)
        self._counts = np.concatenate([np.arange(quota) for quota in self._quotas])
        self._rounds = Order(len(self._owners), _key(seed, ""))
        self._orders = [Order(size, _key(seed, name)) for name, size in sizes.items()]
        self._firsts = np.cumsum([0, *sizes.values()], dtype=np.int64)[:-1]

    def at(self, positions: Indices) -> Indices:
        """Indices of the samples at any positions, one for each."""
        owners, places = self._places(positions)
        indices = np.empty_like(positions)
        for number, (order, first) in enumerate(zip(self._orders, self._firsts, strict=True)):
            own = np.flatnonzero(owners == number)
            if own.size:
                indices[own] = first + order.at(places[own])
        return indices

    def _places(self, positions: Indices) -> tuple[Indices, Indices]:
        """For each position, whose it is, and how many of that dataset came before it."""
        size = len(self._owners)
        rounds, slots = np.divmod(positions, size)
        numbers, which = np.unique(rounds, return_inverse=True)
        whole = numbers[:, None] * size + np.arange(size)
        owner_at = self._owners[self._rounds.at(whole.ravel())].reshape(whole.shape)
        earlier = np.empty_like(owner_at)
        by_owner = np.argsort(owner_at, axis=1, kind="stable")
        np.put_along_axis(earlier, by_owner, self._counts[None], axis=1)
        owners = owner_at[which, slots]
        return owners, rounds * self._quotas[owners] + earlier[which, slots]


def _key(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
