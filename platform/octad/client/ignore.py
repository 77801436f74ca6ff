"""What stays behind when a folder is sent: gitignore's rules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from octad.errors import PackageError

IGNORE_FILE = ".octadignore"
# Version control, environments, caches, and the folders that MLflow and Hydra write.
USUAL = (
    ".git/",
    ".hg/",
    ".svn/",
    ".venv/",
    "venv/",
    "node_modules/",
    "__pycache__/",
    "*.py[cod]",
    "*.egg-info/",
    ".*_cache/",
    ".hypothesis/",
    ".ipynb_checkpoints/",
    ".tox/",
    ".nox/",
    ".coverage",
    ".DS_Store",
    "mlruns/",
    "mlartifacts/",
    "mlflow.db",
    "/outputs/",
    "/multirun/",
)


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    is_kept: bool
    only_folders: bool


class Ignore:
    """Patterns as in a `.gitignore` at the top of the folder; the last one that fits decides.

    As in git, what lies in a folder that is left out cannot be taken back in.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        """Read the patterns.

        Raises:
            PackageError: One cannot be.
        """
        self._rules = [rule for line in lines if (rule := _rule(line)) is not None]

    def leaves_out(self, path: str, *, is_folder: bool) -> bool:
        """Whether a path (relative, with `/`) stays behind."""
        for rule in reversed(self._rules):
            if (is_folder or not rule.only_folders) and rule.pattern.fullmatch(path):
                return not rule.is_kept
        return False


def _rule(line: str) -> _Rule | None:
    text = re.sub(r"(?<!\\)\s+$", "", line.rstrip("\r\n"))
    if not text or text.startswith("#"):
        return None
    is_kept = text.startswith("!")
    text = text[1:] if is_kept else text
    only_folders = text.endswith("/")
    text = text.rstrip("/")
    if not text:
        return None
    is_anchored = "/" in text
    body = _expression(text.lstrip("/"))
    prefix = "" if is_anchored else "(?:.*/)?"
    try:
        pattern = re.compile(prefix + body, re.DOTALL)
    except re.error as error:
        raise PackageError(f"{line!r} is no pattern: {error.msg}", where=IGNORE_FILE) from None
    return _Rule(pattern, is_kept, only_folders)


def _expression(glob: str) -> str:
    """A gitignore glob as a regular expression."""
    out = []
    place = 0
    while place < len(glob):
        rest = glob[place:]
        if rest.startswith("**/") and (place == 0 or glob[place - 1] == "/"):
            out.append("(?:.*/)?")
            place += 3
        elif rest == "**" and place and glob[place - 1] == "/":
            out.append(".+")
            place += 2
        elif rest[0] == "*":
            out.append("[^/]*")
            place += 1
        elif rest[0] == "?":
            out.append("[^/]")
            place += 1
        elif found := re.match(r"\[([!^]?)(\][^\]]*|[^\]]+)\]", rest):
            inside = found[2].replace("\\", "\\\\").replace("[", "\\[").replace("^", "\\^")
            out.append(f"[{'^' if found[1] else ''}{inside}]")
            place += found.end()
        else:
            step = 2 if rest[0] == "\\" and len(rest) > 1 else 1
            out.append(re.escape(rest[step - 1]))
            place += step
    return "".join(out)
