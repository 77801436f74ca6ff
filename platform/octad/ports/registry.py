"""The folder is the registry: a `kind` names a module of a package, loaded only when asked for."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import pkgutil
import sys
from types import ModuleType

from octad.errors import ConfigError
from octad.spec.frozen import nearest


def kinds(package: str) -> list[str]:
    """Names of the kinds a folder holds, with those that other distributions add.

    Others add by an entry point in the group named as the package, whose value is a module.
    """
    folder = importlib.import_module(package)
    own = {m.name for m in pkgutil.iter_modules(folder.__path__) if not m.name.startswith("_")}
    return sorted(own | _added(package, tuple(sys.path)).keys())


def load(package: str, kind: str, where: str = "kind") -> ModuleType:
    """The module of one kind; imports only that.

    Raises:
        ConfigError: There is no such kind.
    """
    if kind not in kinds(package):
        group = package.rpartition(".")[2]
        raise ConfigError(
            f"no {group} kind is called {kind!r}", where=where, hint=nearest(kind, kinds(package))
        )
    return importlib.import_module(_added(package, tuple(sys.path)).get(kind, f"{package}.{kind}"))


@functools.cache
def _added(package: str, path: tuple[str, ...]) -> dict[str, str]:
    """Kinds that other distributions on `path` add: name to module. A scan takes a while."""
    return {point.name: point.value for point in importlib.metadata.entry_points(group=package)}
