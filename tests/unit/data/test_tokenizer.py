"""The tokenizer: any text comes back, and the same text gives the same tokenizer."""

import itertools
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octad.data import tokenizer as bpe
from octad.errors import DataError

TEXTS = ["def read(self):\n    return self.text\n" * 20, "Ärger über 東京 🚀 and more\n" * 20]
TRAINED = bpe.train(TEXTS, 300)


def ids_of(text: str) -> list[int]:
    return list(itertools.chain(*bpe.encoded(bpe.parsed(TRAINED, "here"), text)))


@settings(max_examples=50)
@given(st.text(max_size=300))
def test_any_text_comes_back(text: str) -> None:
    tokenizer = bpe.parsed(TRAINED, "here")
    ids = ids_of(text)
    assert ids[-1] == bpe.end_of_text(tokenizer)
    assert tokenizer.decode(ids[:-1], skip_special_tokens=False) == text
    assert max(ids) < tokenizer.get_vocab_size()


def test_the_name_of_the_end_in_a_text_does_not_end_it() -> None:
    tokenizer = bpe.parsed(TRAINED, "here")
    ids = ids_of(f"before {bpe.END_OF_TEXT} after")
    assert ids.count(bpe.end_of_text(tokenizer)) == 1
    assert tokenizer.decode(ids[:-1]) == f"before {bpe.END_OF_TEXT} after"


def test_the_vocabulary_is_at_most_what_was_asked() -> None:
    for vocab in (bpe.MIN_VOCAB, 300, 100_000):
        size = bpe.parsed(bpe.train(TEXTS, vocab), "here").get_vocab_size()
        assert bpe.MIN_VOCAB <= size <= vocab
    assert bpe.parsed(bpe.train([], 300), "here").get_vocab_size() == bpe.MIN_VOCAB


@pytest.mark.parametrize("threads", ["1", "4"])
def test_another_process_trains_the_same_tokenizer(threads: str) -> None:
    program = (
        "import sys; from octad.data import tokenizer as bpe; from octad.data.sources import stdlib;"
        "from octad.ports.data import Skipped; s = stdlib.build(stdlib.Settings(), None);"
        "sys.stdout.write(bpe.train([next(iter(s.read(p, Skipped()))).text"
        " for p in s.parts()[:30]], 1500))"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": "platform", "RAYON_NUM_THREADS": count},
            cwd=Path(__file__).parents[3],
            check=True,
            capture_output=True,
        ).stdout
        for count in ("2", threads)
    ]
    assert told[0] == told[1]
    assert len(told[0]) > 10_000


@pytest.mark.parametrize("text", ["", "x" * 200_000, "line\n" * 40_000, "\n" * 100_000])
def test_blocks_are_bounded_and_lose_nothing(text: str) -> None:
    blocks = list(bpe.blocks(text))
    assert "".join(blocks) == text
    assert max(map(len, blocks)) <= 2 * 32 * 1024


def test_blocks_are_cut_at_lines() -> None:
    rng = random.Random(0)
    text = "".join("w" * rng.randrange(100) + "\n" for _ in range(3000))
    blocks = list(bpe.blocks(text))
    assert len(blocks) > 3
    assert all(block.endswith("\n") for block in blocks)


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a tokenizer"):
        bpe.parsed("{}", "here")
    with pytest.raises(DataError, match=r"cannot be read"):
        bpe.loaded(tmp_path)
    (tmp_path / "tokenizer.json").write_text(TRAINED.replace(bpe.END_OF_TEXT, "<|other|>"))
    with pytest.raises(DataError, match=r"has none of <\|endoftext\|>"):
        bpe.loaded(tmp_path)
