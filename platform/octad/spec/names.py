"""Names and ids: what may be in them, and how they are made."""

from __future__ import annotations

import re
import secrets
import unicodedata
from typing import Annotated

from pydantic import AfterValidator

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
RULE = "1 to 63 of a-z, 0-9 and '-', starting with a letter or digit"
_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"
_TITLE_LENGTH = 200


def checked_name(text: str) -> str:
    """`text` if it is a valid name.

    Raises:
        ValueError: It is not; the message states the rule.
    """
    if not NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a name: use {RULE}")
    return text


def checked_title(text: str) -> str:
    """A display name: any script, one line, NFC, at most 200 characters.

    Raises:
        ValueError: It is empty, too long, or holds control characters.
    """
    title = unicodedata.normalize("NFC", text).strip()
    if not title or len(title) > _TITLE_LENGTH:
        raise ValueError(f"a title has 1 to {_TITLE_LENGTH} characters, this one {len(title)}")
    if any(unicodedata.category(c) in {"Cc", "Cs"} for c in title):
        raise ValueError("a title holds no control characters")
    return title


Name = Annotated[str, AfterValidator(checked_name)]
Title = Annotated[str, AfterValidator(checked_title)]


def new_run_id(pipeline: str) -> str:
    """A new run id: the pipeline's name, cut to 30 characters, and eight random ones (2^39)."""
    return f"{pipeline[:30].rstrip('-')}-{''.join(secrets.choice(_ALPHABET) for _ in range(8))}"


def submission_id(run: str, stage: str, attempt: int) -> str:
    """The id under which an attempt is known to its Ray cluster."""
    return f"{run}-{stage}-{attempt}"
