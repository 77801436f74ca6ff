"""Documents that share a sample see nothing of each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from octad.models.decoder import Settings
from octad.models.decoder.network import Decoder, places, within_documents

LENGTHS = (5, 1, 7, 3)
SHAPES: list[dict[str, Any]] = [
    {"positions": "learned"},
    {"positions": "rotary", "norm": "rmsnorm", "mlp": "swiglu", "kv_heads": 2},
]


def segments(*lengths: int) -> Tensor:
    """One row: the number of the document that each token is of."""
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]


def decoder(shape: dict[str, Any]) -> Decoder:
    torch.manual_seed(0)
    sizes = {"vocab": 31, "context": sum(LENGTHS), "width": 16, "depth": 2, "heads": 4}
    model = Decoder(Settings.parse({**sizes, **shape}))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_those_of_each_document_alone(shape: dict[str, Any]) -> None:
    model = decoder(shape)
    one, other = (torch.randint(31, (1, sum(LENGTHS))) for _ in range(2))
    order = segments(*LENGTHS), segments(*reversed(LENGTHS))
    together = model(torch.cat([one, other]), segments=torch.cat(order))
    for ids, row, lengths in ((one, 0, LENGTHS), (other, 1, LENGTHS[::-1])):
        alone = [model(document)[0] for document in ids.split(lengths, dim=1)]
        torch.testing.assert_close(together[row], torch.cat(alone), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(together[:1], model(one), atol=1e-2), "the plain sample is one text"


@pytest.mark.parametrize("shape", SHAPES)
def test_no_gradient_leaks_into_another_document(shape: dict[str, Any]) -> None:
    model = decoder({**shape, "tied": False})
    ids = torch.arange(sum(LENGTHS))[None]  # so that a row of the table stands for a place
    model(ids, segments=segments(*LENGTHS))[0, 6:13].sum().backward()
    assert model.embedding is not None
    assert model.embedding.token.grad is not None
    touched = model.embedding.token.grad.abs().sum(1).nonzero().flatten()
    assert touched.tolist() == list(range(6, 13))


def test_one_document_is_the_plain_sample() -> None:
    model, ids = decoder(SHAPES[0]), torch.randint(31, (2, 9))
    packed = model(ids, segments=torch.zeros_like(ids))
    torch.testing.assert_close(packed, model(ids), atol=1e-5, rtol=1e-5)


def test_places_and_sight_begin_anew() -> None:
    row = segments(2, 1, 3)
    assert places(row).tolist() == [[0, 1, 0, 0, 1, 2]]
    assert within_documents(row)[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 1, 1, 1],
    ]
