"""The routes, over the real application: who gets in, what comes back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fastapi.routing import APIRoute, APIWebSocketRoute
from starlette.requests import ClientDisconnect
from starlette.testclient import TestClient

from octad.control import blobs, routes
from octad.control.auth import OPEN_PATHS, read_token
from octad.control.blobs import Blobs
from octad.control.server import ControlPlane, read_spec
from octad.errors import AccessError, ConfigError
from octad.spec.home import Home

if TYPE_CHECKING:
    from tests.unit.control.conftest import World


@pytest.fixture
def plane(
    tmp_path: Path,
    fake_path: Path,
    config_maker: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[ControlPlane]:
    monkeypatch.syspath_prepend(str(fake_path))
    home = Home(tmp_path / "home")
    home.root.mkdir(mode=0o700)
    home.config.write_text(config_maker(home.root))
    made = ControlPlane(home, read_spec(home))
    yield made
    made.lanes.close()
    made.database.close()


@pytest.fixture
def anybody(plane: ControlPlane) -> Iterator[TestClient]:
    with TestClient(
        plane.app, base_url="http://127.0.0.1:8470", raise_server_exceptions=False
    ) as client:
        yield client


@pytest.fixture
def client(anybody: TestClient, plane: ControlPlane) -> TestClient:
    anybody.headers["Authorization"] = f"Bearer {plane.token}"
    return anybody


def upload(client: TestClient, data: bytes = b"code") -> str:
    digest = hashlib.sha256(data).hexdigest()
    assert client.put(f"/api/blobs/{digest}", content=data).status_code == 201
    return digest


def every_route(plane: ControlPlane) -> list[tuple[str, str]]:
    found = []
    for route in plane.app.routes:
        inner = getattr(route, "original_router", None)
        for one in inner.routes if inner is not None else [route]:
            if isinstance(one, APIWebSocketRoute):
                continue  # see test_ray_jobs.py
            assert isinstance(one, APIRoute), one
            found += [(method, one.path) for method in one.methods or ()]
    return found


def test_every_route_but_health_wants_the_token(anybody: TestClient, plane: ControlPlane) -> None:
    routes_there = every_route(plane)
    assert len(routes_there) >= 14
    for method, path in routes_there:
        names = {"job": "j", "protocol": "gcs", "package": "p"}
        filled = path.format(run="r", stage="s", number=1, digest="0" * 64, **names)
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": plane.token}):
            status = anybody.request(method, filled, headers=headers).status_code
            assert status == (200 if path in OPEN_PATHS else 401), (method, path)


def test_what_is_not_a_route_wants_the_token_too(anybody: TestClient) -> None:
    for path in ("/", "/docs", "/openapi.json", "/api", "/api/health/", "//api/health"):
        assert anybody.get(path).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:8470"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ],
)
def test_calls_from_web_pages_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    assert client.get("/api/runs", headers=headers).status_code == 403
    assert client.get("/api/health", headers=headers).status_code == 403


def test_a_run_is_made_once_whoever_asks_again(client: TestClient, world: World) -> None:
    body = world.submission(run="r1", key="the-key-1").plain() | {"package": upload(client)}
    first = client.post("/api/runs", json=body)
    again = client.post("/api/runs", json=body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"] == "r1"
    other = client.post("/api/runs", json=body | {"sweep": "s"})
    assert other.status_code == 409
    assert "run r1 (queued)" in other.json()["error"]["what"]
    taken = client.post("/api/runs", json=body | {"idempotency_key": "the-key-2"})
    assert taken.status_code == 409
    assert "run r1 exists already; it is queued" in taken.json()["error"]["what"]
    assert client.get("/api/runs/r1").json()["stages"][0]["name"] == "one"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "/api/runs", b"{", 422, "not JSON"),
        ("POST", "/api/runs", b"[]", 422, "JSON object"),
        ("POST", "/api/runs", b'{"specc": 1}', 422, "did you mean 'spec'"),
        ("POST", "/api/runs", b"[" * 100_000, 422, "not JSON"),
        ("POST", "/api/runs/nope/cancel", b"", 404, "no run is called 'nope'"),
        ("GET", "/api/runs/nope", b"", 404, "no run is called"),
        ("GET", "/api/runs?limit=0", b"", 422, "limit"),
        ("GET", "/api/runs?before=nope", b"", 404, "nope"),
        ("GET", "/api/runs/%2e%2e%2f", b"", 404, ""),
        ("PUT", "/api/blobs/abc", b"x", 422, "not a sha256"),
        ("PUT", f"/api/blobs/{'0' * 64}", b"x", 422, "digest"),
        ("POST", "/api/shutdown", b'{"fleet": 1}', 422, "true or false"),
        ("DELETE", "/api/runs", b"", 405, ""),
    ],
)
def test_bad_calls_get_one_line(
    client: TestClient, method: str, path: str, body: bytes, status: int, words: str
) -> None:
    answer = client.request(method, path, content=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert words in f"{error['where']} {error['what']} {error['hint']}"


def test_what_is_too_large_is_refused(
    client: TestClient, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MAX_BODY_BYTES", 1000)
    assert client.post("/api/runs", content=b" " * 1001).status_code == 413
    plane.services.blobs._most_bytes = 1000
    data = b"x" * 1001
    digest = hashlib.sha256(data).hexdigest()
    assert client.put(f"/api/blobs/{digest}", content=data).status_code == 413
    chunks = iter([data[:600], data[600:]])
    assert client.put(f"/api/blobs/{digest}", content=chunks).status_code == 413
    assert client.head(f"/api/blobs/{digest}").status_code == 404
    assert list((plane.home.root / "spool").iterdir()) == []


def test_a_blob_is_stored_once_and_whole(client: TestClient, plane: ControlPlane) -> None:
    data = b"abc" * 100_000
    digest = upload(client, data)
    assert client.head(f"/api/blobs/{digest}").headers["X-Octad-Size"] == str(len(data))
    assert client.put(f"/api/blobs/{digest}", content=data).status_code == 200
    assert plane.store.get(f"blobs/{digest}") == data


def test_pages_go_back_in_time_and_do_not_repeat(client: TestClient, world: World) -> None:
    package = upload(client)
    for number in range(5):
        body = world.submission(run=f"r{number}").plain() | {"package": package}
        client.post("/api/runs", json=body | {"sweep": "s" if number % 2 else ""})
    first = client.get("/api/runs?limit=3").json()
    rest = client.get("/api/runs", params={"limit": 3, "before": first["next_before"]}).json()
    assert [r["id"] for r in first["runs"] + rest["runs"]] == ["r4", "r3", "r2", "r1", "r0"]
    assert rest["next_before"] is None
    swept = client.get("/api/runs?sweep=s").json()
    assert [r["id"] for r in swept["runs"]] == ["r3", "r1"]


def test_a_run_whose_code_was_not_sent_is_refused(client: TestClient, world: World) -> None:
    answer = client.post("/api/runs", json=world.submission().plain())
    assert answer.status_code == 404
    assert "PUT /api/blobs/" in answer.json()["error"]["hint"]


def test_the_queue_is_what_waits_for_cards(client: TestClient) -> None:
    assert client.get("/api/queue").json() == {"stages": []}


def test_the_fleet_is_asked_and_answers_at_once(client: TestClient, plane: ControlPlane) -> None:
    assert client.get("/api/fleet").json()["clusters"][0]["state"] == "down"
    assert client.post("/api/fleet/up").json()["clusters"][0]["state"] == "starting"
    plane.fleet.tick("alpha")
    seen = client.get("/api/fleet").json()["clusters"][0]
    assert (seen["state"], seen["cards"]) == ("up", 16)
    client.post("/api/fleet/down")
    plane.fleet.tick("alpha")
    assert client.get("/api/fleet").json()["clusters"][0]["state"] == "down"


def test_doctor_finds_what_is_wrong(client: TestClient, plane: ControlPlane) -> None:
    checks = {c["name"]: c for c in client.get("/api/doctor").json()["checks"]}
    assert {"versions", "home", "store", "space", "tracker", "cluster alpha"} <= set(checks)
    assert checks["store"]["is_ok"]
    assert not checks["cluster alpha"]["is_ok"]
    plane.home.token.chmod(0o644)
    checks = {c["name"]: c for c in client.get("/api/doctor").json()["checks"]}
    assert "chmod" in checks["home"]["hint"]
    assert list(plane.store.walk("probe/")) == []


def test_nobody_else_can_read_the_database_or_what_lies_beside_it(plane: ControlPlane) -> None:
    names = {path.name: path for path in plane.home.root.glob("octad.sqlite*")}
    assert {"octad.sqlite", "octad.sqlite-wal"} <= set(names)
    assert {path.stat().st_mode & 0o077 for path in names.values()} == {0}


def test_only_loopback_is_listened_on(
    plane: ControlPlane, config_maker: Callable[..., str]
) -> None:
    plane.home.config.write_text(config_maker(plane.home.root, host="0.0.0.0"))
    with pytest.raises(ConfigError, match="TLS and teams"):
        read_spec(plane.home)
    plane.home.config.write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        read_spec(plane.home)
    plane.home.config.unlink()
    with pytest.raises(ConfigError, match="octad up"):
        read_spec(plane.home)


def test_a_token_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "token"
    token = read_token(path)
    assert len(token) >= 43
    assert read_token(path) == token
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(AccessError, match="others can read"):
        read_token(path)


def test_a_bug_is_told_as_one_and_without_a_traceback(
    client: TestClient, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object, **_options: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(type(plane.services.runs), "view", broken)
    answer = client.get("/api/runs/r1")
    assert answer.status_code == 500
    assert "ZeroDivisionError" in answer.json()["error"]["what"]
    assert "secret" not in answer.text


def test_a_caller_that_leaves_is_no_bug(
    client: TestClient,
    plane: ControlPlane,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def left(*_args: object) -> bool:
        raise ClientDisconnect

    monkeypatch.setattr(plane.services.blobs, "put", left)
    assert client.put(f"/api/blobs/{'a' * 64}", content=b"x").status_code == 400
    assert [r for r in caplog.records if r.levelname == "ERROR"] == []


def test_the_limits_are_what_the_docs_say() -> None:
    assert blobs.MAX_BLOB_BYTES == 16 * 1024**3
    assert Blobs.__doc__ is not None
