"""A folder of a user's own configs."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., Path]:
    """Writes configs of a user's own, by their place, and gives the folder."""

    def write(**files: str | bytes) -> Path:
        folder = tmp_path / "my conf"
        for name, content in files.items():
            path = folder / f"{name.replace('__', '/')}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        folder.mkdir(exist_ok=True)
        return folder

    return write
