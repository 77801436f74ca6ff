"""The folder is the registry."""

import subprocess
import sys

import pytest

from octad.errors import ConfigError
from octad.ports.registry import kinds, load

# What only servers and nodes have.
HEAVY = [
    "torch",
    "ray",
    "mlflow",
    "pyarrow",
    "obstore",
    "numpy",
    "safetensors",
    "tokenizers",
    "sqlalchemy",
    "fastapi",
]
PACKAGES = [
    "octad.clusters",
    "octad.data.sources",
    "octad.models",
    "octad.stages",
    "octad.trackers",
]


@pytest.mark.parametrize("package", PACKAGES)
def test_kinds_are_the_files_of_the_folder(package: str) -> None:
    assert kinds(package)
    assert not [name for name in kinds(package) if name.startswith("_")]


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'pretrain'"):
        load("octad.stages", "pretrian")


@pytest.mark.parametrize("package", ["octad.stages", "octad.models", "octad.data.sources"])
def test_a_laptop_without_torch_and_ray_loads_every_kind(package: str) -> None:
    program = (
        "import sys\n"
        f"for heavy in {HEAVY}: sys.modules[heavy] = None\n"
        "from octad.ports.registry import kinds, load\n"
        f"for kind in kinds({package!r}): assert load({package!r}, kind).Settings\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
