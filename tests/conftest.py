"""Which tests may run side by side: `make test` uses two processes."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with real Ray clusters run one after the other; slow files keep their fixtures."""
    for item in items:
        if item.get_closest_marker("ray"):
            item.add_marker(pytest.mark.xdist_group("ray"))
        elif item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.xdist_group(item.path.name))
