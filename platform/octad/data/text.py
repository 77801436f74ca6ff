"""Bytes to clean text. Nothing here fails on bad input; it counts."""

from __future__ import annotations

import codecs
import re

REPLACEMENT = "\ufffd"
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_LINE_END = re.compile("\r\n?")
# The longer mark first: UTF-32's little-endian one starts with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def decoded(raw: bytes) -> tuple[str, int]:
    """The text of a file, and how many of its bytes are bad.

    UTF-8, or UTF-16 and UTF-32 with a byte order mark. The mark is dropped, line ends become a
    line feed, each bad byte becomes U+FFFD.
    """
    mark, encoding = next((m for m in _MARKS if raw.startswith(m[0])), (b"", "utf-8"))
    raw = raw[len(mark) :]
    if encoding != "utf-8":
        text = raw.decode(encoding, errors="replace")
        lost = text.count(REPLACEMENT) - raw.decode(encoding, errors="ignore").count(REPLACEMENT)
        return _LINE_END.sub("\n", text), lost
    # As surrogates, so that bad bytes can be told from a U+FFFD that was there before.
    text, num_bad = cleaned(raw.decode(errors="surrogateescape"))
    return text, num_bad


def cleaned(text: str) -> tuple[str, int]:
    """Text without lone surrogates and with line feeds only, and how many surrogates there were."""
    if text.isascii():
        return _LINE_END.sub("\n", text) if "\r" in text else text, 0
    text, num_bad = _LONE_SURROGATE.subn(REPLACEMENT, text)
    return _LINE_END.sub("\n", text), num_bad
