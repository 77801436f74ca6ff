"""Is everything there that runs need? One line for each thing."""

from __future__ import annotations

import platform
import secrets
import shutil
from collections.abc import Callable
from importlib import metadata

import octad
from octad.control.fleet import Fleet
from octad.control.shipping import Shipper
from octad.control.tracking import TrackingServer
from octad.errors import OctadError
from octad.spec.home import Home
from octad.spec.runs import Check, DoctorView
from octad.storage import ObjectStore

_PACKAGES = ("ray", "torch", "mlflow", "obstore")
_LITTLE_SPACE_BYTES = 5 * 1024**3


class Doctor:
    """The service behind `octad doctor`."""

    def __init__(
        self,
        home: Home,
        store: ObjectStore,
        fleet: Fleet,
        tracking: TrackingServer | None,
        shipper: Shipper,
    ) -> None:
        self._home = home
        self._store = store
        self._fleet = fleet
        self._tracking = tracking
        self._shipper = shipper

    def check(self) -> DoctorView:
        """Every check, each on its own: one that fails hides no other."""
        checks: list[Callable[[], Check]] = [
            self._versions,
            self._home_modes,
            self._store_creates_once,
            self._space,
            self._tracker,
        ]
        clusters = [self._cluster(name) for name in (c.name for c in self._fleet.specs)]
        return DoctorView(checks=(*(_guarded(check) for check in checks), *clusters))

    def _versions(self) -> Check:
        found = {name: _version(name) for name in _PACKAGES}
        missing = [name for name in ("ray", "mlflow", "obstore") if found[name] is None]
        told = ", ".join(f"{name} {found[name] or 'not installed'}" for name in _PACKAGES)
        return Check(
            name="versions",
            is_ok=not missing,
            detail=f"octad {octad.__version__}, Python {platform.python_version()}, {told}",
            hint="pip install 'octad[server]'" if missing else "",
        )

    def _home_modes(self) -> Check:
        wrong = [
            str(path)
            for path in (self._home.root, self._home.token, self._home.endpoint)
            if path.exists() and path.stat().st_mode & 0o077
        ]
        return Check(
            name="home",
            is_ok=not wrong,
            detail=f"others can read {', '.join(wrong)}" if wrong else str(self._home.root),
            hint=f"chmod go= {' '.join(wrong)}" if wrong else "",
        )

    def _store_creates_once(self) -> Check:
        """Commits rest on create-if-absent, and not every store has it."""
        key = f"probe/{secrets.token_hex(8)}"
        try:
            first, second = self._store.create(key, b"1"), self._store.create(key, b"2")
            is_kept = self._store.get(key) == b"1"
        finally:
            self._store.delete([key])
        is_ok = first and not second and is_kept
        return Check(
            name="store",
            is_ok=is_ok,
            detail=f"{self._store.spec.url} {'creates' if is_ok else 'does not create'} "
            "an object only if there is none",
            hint="" if is_ok else "use a store with conditional writes",
        )

    def _space(self) -> Check:
        free = {"home": shutil.disk_usage(self._home.root).free}
        in_store = self._store.bytes_free()
        if in_store is not None:
            free["store"] = in_store
        is_ok = min(free.values()) > _LITTLE_SPACE_BYTES
        return Check(
            name="space",
            is_ok=is_ok,
            detail=", ".join(
                f"{name} {size / 1024**3:.1f} GiB free" for name, size in free.items()
            ),
            hint="" if is_ok else "free some, or move the store: storage.url",
        )

    def _tracker(self) -> Check:
        failure = self._shipper.failure
        if self._tracking is not None and not self._tracking.is_up:
            failure = failure or self._tracking.failure or "it is not up yet"
        return Check(
            name="tracker",
            is_ok=not failure,
            detail=failure or self._shipper.url or "none is configured",
            hint="runs go on, and are shipped later" if failure else "",
        )

    def _cluster(self, name: str) -> Check:
        view = self._fleet.view(name)
        state = view.state if view else "not looked at yet"
        detail = f"{state}: {view.reason}" if view and view.reason else state
        if view and view.state == "up":
            detail = f"up, {view.cards_free} of {view.cards} cards free"
        return Check(
            name=f"cluster {name}",
            is_ok=state == "up",
            detail=detail,
            hint="" if state == "up" else "octad up",
        )


def _guarded(check: Callable[[], Check]) -> Check:
    try:
        return check()
    except (OctadError, OSError) as error:
        name = check.__name__.removeprefix("_").partition("_")[0]
        hint = error.hint if isinstance(error, OctadError) else ""
        return Check(name=name, is_ok=False, detail=str(error), hint=hint)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
