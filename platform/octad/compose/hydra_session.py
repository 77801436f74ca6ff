"""Hydra's compose API, so that it can be called many times and from many threads.

No output folders, no logging set-up, and whatever Hydra state the calling program has is as before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from octad.compose.folders import FileState, check_files, conf_folders, states
from octad.compose.overrides import Override, quoted
from octad.compose.values import assign
from octad.errors import ConfigError
from octad.spec.frozen import nearest

# Hydra keeps its state in one place per process.
_LOCK = threading.RLock()


def composed(primary: str, overrides: Sequence[Override], conf: Path | None) -> DictConfig:
    """The config of a primary config file, with interpolations still in it.

    Args:
        primary: `config`, `server` or `job`.
        overrides: Options of groups and values, in the order typed.
        conf: A folder of the user's own, looked into before octad's.

    Raises:
        ConfigError: A file, group option or key is not there or cannot be read.
    """
    folders = conf_folders(conf)
    check_files(folders[:-1])
    with _LOCK, _errors(), _hydra(folders):
        options, values = _split(states(folders), primary, overrides)
        config = _load(primary, options)
    assign(config, values)
    return config


@contextmanager
def _hydra(folders: Sequence[Path]) -> Iterator[None]:
    """Hydra, set up for these folders, the first one winning; the last one is octad's.

    Hydra's public ways only add folders behind the first one, and refuse to begin where the calling
    program has begun already.
    """
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.global_hydra import GlobalHydra
    from hydra.initialize import get_gh_backup, restore_gh_from_backup
    from hydra.version import VersionBase, setbase

    *own, ours = folders
    path = create_config_search_path(str(ours))
    for folder in reversed(own):
        path.prepend("own", f"file://{folder}")
    before, base = get_gh_backup(), VersionBase.instance().version_base
    try:
        GlobalHydra.instance().clear()
        setbase("1.3")
        Hydra.create_main_hydra2("octad", path)
        yield
    finally:
        restore_gh_from_backup(before)
        VersionBase.instance().version_base = base


def _load(primary: str, options: list[str]) -> DictConfig:
    from hydra import compose

    return compose(primary, overrides=options)


@lru_cache(maxsize=64)
def _mounts(
    _files: tuple[FileState, ...], primary: str, options: tuple[str, ...]
) -> Mapping[str, str]:
    """Package to group, for every option of a group that the config is made of.

    To find them is a third of the time that a composition takes, and all of a sweep have the same.
    """
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode

    loader = GlobalHydra.instance().config_loader()
    found: dict[str, str] = {}
    for default in loader.compute_defaults_list(primary, list(options), RunMode.RUN).defaults:
        group = str(default.config_path).rpartition("/")[0]
        if group and not group.startswith("hydra") and not default.primary:
            found[default.package or group] = group
    return found


def _split(
    files: tuple[FileState, ...], primary: str, overrides: Sequence[Override]
) -> tuple[list[str], list[Override]]:
    """Which overrides choose an option of a group, in Hydra's words, and which set a value.

    `pretrain.optimizer=sgd` chooses, because the config mounts the group `optimizer` there. A choice
    may bring new mounts with it, so this is repeated until nothing changes.
    """
    options: dict[str, str] = {}
    explicit = {o.key: f"{o.key}={o.text}" for o in overrides if "@" in o.key}
    rest = [o for o in overrides if "@" not in o.key]
    while True:
        mounts = _mounts(files, primary, tuple(options.values())) if _may_choose(rest) else {}
        chosen = [o for o in rest if o.key in mounts and _is_option(o.value)]
        if not chosen and explicit:
            options.update(explicit)
            explicit = {}
            continue
        if not chosen:
            return list(options.values()), rest
        for override in chosen:
            group = mounts[override.key]
            _check_option(group, override)
            key = (
                group if group == override.key or group == "pipeline" else f"{group}@{override.key}"
            )
            options[key] = f"{key}={quoted(str(override.value))}"
        rest = [o for o in rest if o not in chosen]


def _may_choose(overrides: Sequence[Override]) -> bool:
    return any(_is_option(override.value) for override in overrides)


def _check_option(group: str, override: Override) -> None:
    from hydra.core.global_hydra import GlobalHydra

    option = str(override.value)
    known = GlobalHydra.instance().config_loader().get_group_options(group)
    if "/" not in option and option not in known:
        raise ConfigError(
            f"there is no {group} called {option!r}",
            where=override.key,
            hint=nearest(option, known),
        )


def _is_option(value: Any) -> bool:
    return isinstance(value, str | int | float) and "${" not in str(value)


@contextmanager
def _errors() -> Iterator[None]:
    """Hydra's and YAML's errors as one clear line each."""
    from hydra.errors import HydraException, MissingConfigException

    try:
        yield
    except MissingConfigException as error:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        what = f"there is no {group} called {option!r}" if group else _first_line(error)
        raise ConfigError(what, where=group, hint=nearest(option, error.options or ())) from None
    except yaml.MarkedYAMLError as error:
        raise _marked(error) from None
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        cause = error.__cause__
        if isinstance(cause, yaml.MarkedYAMLError):
            raise _marked(cause) from None
        raise ConfigError(_first_line(error)) from None


def _marked(error: yaml.MarkedYAMLError) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    where = f"{mark.name}:{mark.line + 1}:{mark.column + 1}" if mark else ""
    what = error.problem or error.context or "not YAML"
    hint = "indent with spaces" if "'\\t'" in what else ""
    return ConfigError(what, where=where, hint=hint)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
