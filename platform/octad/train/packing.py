"""Samples as what goes into the model and what it is to predict, with documents kept apart."""

from __future__ import annotations

from torch import Tensor

from octad.train.loss import IGNORE


def packed(samples: Tensor, end_of_text: int | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Token ids, targets, and the number of the document that each id is of, all int64 B S.

    What follows the end of a text is the start of another one, which nothing before it says
    anything about: that target does not count.

    Args:
        samples: int64, B S+1.
        end_of_text: The id that follows every document; None takes each sample as one text.
    """
    ids, targets = samples[:, :-1], samples[:, 1:]
    if end_of_text is None:
        return ids, targets, None
    is_last = ids == end_of_text
    return ids, targets.masked_fill(is_last, IGNORE), is_last.cumsum(1) - is_last.long()
