"""Text from a decoder, token by token."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def generate(
    model: nn.Module,
    prompt: list[int],
    *,
    length: int,
    context: int,
    temperature: float = 0.8,
    seed: int = 0,
) -> list[int]:
    """The `length` tokens that follow a prompt.

    The whole visible text is read again for each token: meant for a short sample, not for serving.

    Args:
        model: Gives logits of shape 1 x S x vocabulary.
        prompt: Token ids, at least one.
        length: How many to add.
        context: The model sees at most so many of the last tokens.
        temperature: 0 takes the likeliest token always.
        seed: Of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    ids = list(prompt)
    for _ in range(length):
        visible = torch.tensor([ids[-context:]], device=device)
        logits: Tensor = model(visible)[0, -1].float()
        if temperature == 0:
            ids.append(int(logits.argmax()))
            continue
        chances = torch.softmax(logits / temperature, dim=-1)
        ids.append(int(torch.multinomial(chances.cpu(), 1, generator=generator)))
    return ids[len(prompt) :]
