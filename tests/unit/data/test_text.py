"""Bytes to text: what is mended, and what is counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octad.data.text import cleaned, decoded


@pytest.mark.parametrize(
    ("raw", "text", "num_bad"),
    [
        (b"", "", 0),
        (b"a\r\nb\rc\n", "a\nb\nc\n", 0),
        (b"\xef\xbb\xbfhi", "hi", 0),
        (b"a\xffb\xfe\xfd", "a\ufffdb\ufffd\ufffd", 3),
        ("já\ufffd".encode(), "já\ufffd", 0),
        ("já".encode("latin-1"), "j\ufffd", 1),
        (b"cut \xe2\x82", "cut \ufffd\ufffd", 2),
        ("ab\r\n€".encode("utf-16"), "ab\n€", 0),
        (b"\xfe\xff" + "x€".encode("utf-16-be"), "x€", 0),
        ("z".encode("utf-32"), "z", 0),
        (b"\xff\xfea\x00\x00", "a\ufffd", 1),
    ],
)
def test_bad_bytes_are_replaced_and_counted(raw: bytes, text: str, num_bad: int) -> None:
    assert decoded(raw) == (text, num_bad)


def test_lone_surrogates_are_replaced_and_counted() -> None:
    assert cleaned("a\ud800b\udfff\r\n") == ("a\ufffdb\ufffd\n", 2)


@given(st.binary(max_size=200))
def test_any_bytes_give_text_that_can_be_encoded(raw: bytes) -> None:
    text, num_bad = decoded(raw)
    assert "\r" not in text
    assert len(text.encode()) >= num_bad
