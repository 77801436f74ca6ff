"""For all tests."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """Keep the collector from looking through all that was imported, at every test."""
    gc.collect()
    gc.freeze()
