"""The order of samples: a keyed permutation for every epoch, computed and never stored.

The position is the number of samples seen so far, over all epochs. It knows nothing of cards, so
the sequence of global batches is the same on any number of them and after any stop.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 8
_MAX_SAMPLES = 2**62

Indices = NDArray[np.int64]
_Words = NDArray[np.uint64]


class Order:
    """Which sample comes when.

    Args:
        num_samples: Samples in the dataset; at least 1.
        seed: Another seed is another order.
    """

    def __init__(self, num_samples: int, seed: int) -> None:
        if not 1 <= num_samples <= _MAX_SAMPLES:
            raise ValueError(f"an order needs 1 to 2**62 samples, not {num_samples}")
        self.num_samples = num_samples
        self.seed = seed
        # A Feistel network permutes [0, 4**half_bits), the least such range that holds all.
        half_bits = max(1, ((num_samples - 1).bit_length() + 1) // 2)
        self._shift = np.uint64(half_bits)
        self._mask = np.uint64(2**half_bits - 1)

    def batch(self, position: int, size: int) -> Indices:
        """Indices of the `size` samples from a position on; may run over ends of epochs.

        Args:
            position: Samples seen before, over all epochs.
            size: How many.
        """
        if position < 0 or size < 0:
            raise ValueError(f"no batch of {size} at position {position}")
        if size == 0:
            return np.empty(0, np.int64)
        return self.at(np.arange(position, position + size, dtype=np.int64))

    def at(self, positions: Indices) -> Indices:
        """Indices of the samples at any positions, one for each."""
        epochs, places = np.divmod(positions, self.num_samples)
        epochs, numbers = np.unique(epochs, return_inverse=True)
        keys = np.stack([_keys(self.seed, int(epoch)) for epoch in epochs])
        keys = keys[numbers] if len(epochs) > 1 else np.broadcast_to(keys, (len(places), _ROUNDS))
        words = self._network(places.astype(np.uint64), keys)
        # Walk on from what falls outside; each walk ends, as the network is a permutation.
        outside = np.flatnonzero(words >= self.num_samples)
        while outside.size:
            words[outside] = self._network(words[outside], keys[outside])
            outside = outside[words[outside] >= self.num_samples]
        return words.astype(np.int64)

    def _network(self, words: _Words, keys: _Words) -> _Words:
        left, right = words >> self._shift, words & self._mask
        for key in keys.T:
            left, right = right, left ^ (_mixed(right ^ key) & self._mask)
        return (left << self._shift) | right


def _keys(seed: int, epoch: int) -> _Words:
    """One word for each round."""
    raw = hashlib.blake2b(f"{seed}:{epoch}".encode(), digest_size=8 * _ROUNDS).digest()
    return np.frombuffer(raw, dtype="<u8").astype(np.uint64)


def _mixed(words: _Words) -> _Words:
    """The finaliser of SplitMix64: every bit depends on every other."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
