"""What of a sample goes in, what is to be predicted, and what is of one document."""

import torch

from octad.train.loss import IGNORE
from octad.train.packing import packed

END = 9
SAMPLE = torch.tensor([[1, 2, END, 3, END, END, 4]])


def test_a_stream_is_one_text() -> None:
    ids, targets, segments = packed(SAMPLE, None)
    assert ids.tolist() == [[1, 2, END, 3, END, END]]
    assert targets.tolist() == [[2, END, 3, END, END, 4]]
    assert segments is None


def test_documents_end_with_their_end_and_predict_nothing_of_the_next() -> None:
    ids, targets, segments = packed(SAMPLE, END)
    assert segments is not None
    assert ids.tolist() == [[1, 2, END, 3, END, END]]
    assert segments.tolist() == [[0, 0, 0, 1, 1, 2]]
    assert targets.tolist() == [[2, END, IGNORE, END, IGNORE, IGNORE]]
