"""The training groups of the integration tests."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.training.conftest import Lab

SOURCE = Path(__file__).parents[1] / "integration" / "training" / "conftest.py"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    spec = spec_from_file_location("training_lab", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Lab = module.Lab(tmp_path_factory.mktemp("lab"))
    return made
