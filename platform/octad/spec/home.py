"""What lies in the private folder of one control plane (mode 0700): paths only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from octad.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Home:
    """`$OCTAD_HOME`, or `~/.octad`."""

    root: Path

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Home:
        """The home that an environment names."""
        named = environ.get("OCTAD_HOME", "")
        return cls(expanded(Path(named or "~/.octad")))

    @property
    def token(self) -> Path:
        """The token of the loopback control plane, mode 0600."""
        return self.root / "token"

    @property
    def endpoint(self) -> Path:
        """JSON `Endpoint` of the control plane that runs here, if one does."""
        return self.root / "endpoint.json"

    @property
    def lock(self) -> Path:
        """Held (flock) by the running control plane."""
        return self.root / "server.lock"

    @property
    def config(self) -> Path:
        """JSON `ServerSpec` that the control plane was last started with."""
        return self.root / "server.json"

    @property
    def database(self) -> Path:
        """The SQLite database."""
        return self.root / "octad.sqlite"

    @property
    def logs(self) -> Path:
        """Logs of the control plane and of what it starts."""
        return self.root / "logs"

    @property
    def store(self) -> Path:
        """The object store, where none is configured."""
        return self.root / "store"

    @property
    def mlflow(self) -> Path:
        """MLflow's database and small artifacts, where no tracker is configured."""
        return self.root / "mlflow"

    def cluster(self, name: str) -> Path:
        """What the provider of one cluster keeps: tokens, process records."""
        return self.root / "clusters" / name


def expanded(path: Path) -> Path:
    """A path that a person gave, in full: with the folder that `~` or `~somebody` stands for.

    Raises:
        ConfigError: There is no such person here.
    """
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        raise ConfigError("nobody here has that home folder", where=str(path)) from None
