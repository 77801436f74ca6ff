"""A byte-level BPE tokenizer: any text can be encoded, and comes back as it was."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from octad.errors import DataError

END_OF_TEXT = "<|endoftext|>"
# What others call it, where there is none of that name: LLaMA 3, LLaMA 2.
_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>")
FILE = "tokenizer.json"
MIN_VOCAB = 257  # every byte, and the end of a text
_BLOCK_CHARS = 32 * 1024
_BREAK = re.compile(r"\n(?=\S)")


def train(texts: Iterable[str], vocab: int) -> str:
    """The JSON of a tokenizer with at most `vocab` tokens; fewer if the texts give no more.

    The same texts give the same tokenizer.
    """
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((block for text in texts for block in blocks(text)), trainer)
    return tokenizer.to_str(pretty=False)


def parsed(raw: str, where: str) -> Tokenizer:
    """A tokenizer from its JSON, that takes the name of the end-of-text token for plain text.

    Raises:
        DataError: It is no tokenizer, or has no end-of-text token.
    """
    try:
        tokenizer = Tokenizer.from_str(raw)
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        raise DataError(f"not a tokenizer: {error}", where=where) from None
    if _end(tokenizer) is None:
        raise DataError(f"the tokenizer has none of {', '.join(_ENDS)}", where=where)
    tokenizer.encode_special_tokens = True
    return tokenizer


def loaded(folder: Path) -> Tokenizer:
    """The tokenizer in a folder.

    Raises:
        DataError: There is none, or it is no tokenizer.
    """
    path = folder / FILE
    try:
        return parsed(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot be read: {error}", where=str(path)) from None


def end_of_text(tokenizer: Tokenizer) -> int:
    """The id of the token that follows every text."""
    found = _end(tokenizer)
    assert found is not None
    return found


def _end(tokenizer: Tokenizer) -> int | None:
    found = (tokenizer.token_to_id(name) for name in _ENDS)
    return next((int(token) for token in found if token is not None), None)


def num_ids(tokenizer: Tokenizer) -> int:
    """Every id is below this. More than there are tokens, where some ids are left out."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def encoded(tokenizer: Tokenizer, text: str) -> Iterator[list[int]]:
    """Token ids of a text, block by block, with the end-of-text token at the end."""
    for encoding in tokenizer.encode_batch_fast(list(blocks(text)), add_special_tokens=False):
        yield encoding.ids
    yield [end_of_text(tokenizer)]


def blocks(text: str) -> Iterator[str]:
    """A text in pieces of about 32,768 characters, cut at the start of a line where there is one.

    Bounds the memory of an encoding, and lets several threads work on one text.
    """
    start = 0
    while len(text) - start > 2 * _BLOCK_CHARS:
        found = _BREAK.search(text, start + _BLOCK_CHARS, start + 2 * _BLOCK_CHARS)
        end = found.end() if found else start + 2 * _BLOCK_CHARS
        yield text[start:end]
        start = end
    yield text[start:]
