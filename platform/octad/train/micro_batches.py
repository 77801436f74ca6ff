"""How a card's share of a step is cut into micro-batches. No torch: laptops load it."""

from __future__ import annotations

from octad.errors import ConfigError
from octad.spec.layouts import Layout

# From here on a pipeline's cards hardly wait for its first and last micro-batches (GPipe, Huang et
# al. 2019, section 3.2).
_ENOUGH = 4


def micro_batch_size(asked: int | None, global_batch: int, layout: Layout) -> int:
    """Samples that one card takes at once.

    None asks for the whole share. A pipeline works on several micro-batches at a time, so there
    it is the largest that makes four for each card, or else the one that makes the most.

    Raises:
        ConfigError: Something does not divide, or makes too few for the pipeline; names the
            numbers.
    """
    parts = layout.data_parallel
    if global_batch % parts:
        raise ConfigError(
            f"a global batch of {global_batch} cannot be divided by {parts} data-parallel parts",
            where="global_batch",
            hint=f"use a multiple of {parts}",
        )
    share = global_batch // parts
    if asked is not None and share % asked:
        raise ConfigError(
            f"each card gets {share} samples of a step, which micro_batch {asked} does not divide",
            where="micro_batch",
        )
    if layout.pp == 1:
        return asked or share
    return _of_pipeline(asked, share, layout)


def _of_pipeline(asked: int | None, share: int, layout: Layout) -> int:
    sizes = [n for n in range(share, 0, -1) if share % n == 0 and _fits(share // n, layout)]
    if not sizes:
        raise ConfigError(
            f"each card gets {share} samples of a step, which make no micro-batches that pp "
            f"{layout.pp} with pp_schedule {layout.pp_schedule} can take",
            where="global_batch",
            hint=f"use a multiple of {layout.data_parallel * layout.pp}, or a smaller layout.pp",
        )
    if asked is None:
        return next((n for n in sizes if share // n >= _ENOUGH * layout.pp), sizes[-1])
    if asked not in sizes:
        raise ConfigError(
            f"micro_batch {asked} makes {share // asked} micro-batches of a card's {share} "
            f"samples, which pp {layout.pp} with pp_schedule {layout.pp_schedule} cannot take",
            where="micro_batch",
            hint=f"use {' or '.join(map(str, sizes))}, or leave it null",
        )
    return asked


def _fits(count: int, layout: Layout) -> bool:
    """A schedule takes so many micro-batches."""
    if layout.pp_schedule == "interleaved_1f1b":
        # Rounds of at least one micro-batch for each card, all equally long.
        return count >= layout.pp and count % (count // layout.pp) == 0
    return count >= layout.pp
