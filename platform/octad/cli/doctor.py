"""`octad doctor`."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
import urllib.request
from collections.abc import Iterator

from octad import __version__
from octad.cli.options import AsJson
from octad.cli.output import clean, emit
from octad.cli.views import Json
from octad.client.connect import connect
from octad.compose import compose_run, conf_folders
from octad.errors import OctadError, SurroundingsError
from octad.spec.home import Home

_LEAST_FREE_BYTES = 2 << 30
_MAX_SKEW_S = 5.0


def command(as_json: AsJson = False) -> None:
    """Check this machine and the control plane."""
    checks = [*_local(Home.of(os.environ)), *_server()]
    if as_json:
        emit({"checks": checks})
    else:
        for check in checks:
            mark = "ok  " if check["is_ok"] else "BAD "
            hint = f"; {check['hint']}" if check["hint"] else ""
            print(f"{mark} {check['name']}: {clean(check['detail'] + hint)}")
    bad = [check["name"] for check in checks if not check["is_ok"]]
    if bad:
        raise SurroundingsError(f"{len(bad)} of {len(checks)} checks failed: {', '.join(bad)}")


def _check(name: str, detail: str, *, is_ok: bool = True, hint: str = "") -> Json:
    return {"name": name, "is_ok": is_ok, "detail": detail, "hint": "" if is_ok else hint}


def _local(home: Home) -> Iterator[Json]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield _check("versions", f"octad {__version__}, Python {version}")
    yield _configs()
    yield from _home(home)
    yield _proxies()


def _configs() -> Json:
    try:
        compose_run([])
    except OctadError as error:
        return _check("configs", str(error), is_ok=False, hint="install octad again")
    return _check("configs", f"{conf_folders()[-1]} composes")


def _home(home: Home) -> Iterator[Json]:
    if os.environ.get("OCTAD_URL"):
        yield _check("control plane", f"elsewhere, at {os.environ['OCTAD_URL']}")
        return
    folder = next(p for p in (home.root, *home.root.parents) if p.exists())
    free = shutil.disk_usage(folder).free
    yield _check(
        "disk",
        f"{free / (1 << 30):.1f} GiB free for {home.root}",
        is_ok=free >= _LEAST_FREE_BYTES,
        hint="free some space, or set OCTAD_HOME to a folder on another disk",
    )
    for path in (home.root, home.token):
        if path.exists():
            mode = stat.S_IMODE(path.stat().st_mode)
            yield _check(
                "permissions",
                f"{path} has mode {mode:04o}",
                is_ok=not mode & 0o077,
                hint=f"chmod go= {path}",
            )


def _proxies() -> Json:
    named = sorted(k for k in urllib.request.getproxies() if k in {"http", "https", "all"})
    detail = f"set for {', '.join(named)}; never used for this machine" if named else "none"
    return _check("proxies", detail)


def _server() -> Iterator[Json]:
    try:
        wire = connect()
        skew_s = abs(wire.now_ms() / 1000 - time.time())
        view = wire.json("GET", "/api/doctor")
    except OctadError as error:
        yield _check("control plane", str(error), is_ok=False, hint="see its log")
        return
    yield _check("control plane", f"answers at {wire.address.url}")
    yield _check(
        "clocks",
        f"{skew_s:.0f} s apart",
        is_ok=skew_s < _MAX_SKEW_S,
        hint="set both machines' clocks by NTP",
    )
    yield from view["checks"]
