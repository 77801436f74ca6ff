"""Requests, and how they survive."""

import json
import socket
from typing import Any

import pytest

from octad.client.calls import Client
from octad.client.connect import connect
from octad.client.endpoint import API_VERSION
from octad.client.wire import Address, Wire
from octad.errors import AccessError, ConfigError, ConflictError, NotFoundError, UnreachableError
from octad.spec import server

StandIn = Any


def test_the_version_is_that_of_the_wire_types() -> None:
    assert API_VERSION == server.API_VERSION


def test_typed_calls(stand_in: StandIn, conftest: Any) -> None:
    stand_in.views["mine"] = [conftest.run_view("mine", "running", conftest.stage("a"))]
    client = Client(connect())
    assert client.health().api == API_VERSION
    assert client.run("mine").stages[0].name == "a"
    assert client.runs().runs[0].id == "mine"
    assert client.fleet().tracker_url == "http://127.0.0.1:5000"
    with pytest.raises(NotFoundError):
        client.run("a/../b?c")


@pytest.mark.parametrize("api", [0, 2])
def test_another_version_is_refused_naming_both(stand_in: StandIn, api: int) -> None:
    stand_in.api = api
    with pytest.raises(ConflictError, match=rf"\(API {api}\), this command is octad .* \(API 1\)"):
        connect()


def test_something_else_is_no_control_plane(stand_in: StandIn) -> None:
    stand_in.api = "what?"
    with pytest.raises(UnreachableError, match="not a control plane"):
        connect()


@pytest.mark.parametrize(
    ("token", "error"), [("", AccessError), ("wrong", AccessError), ("a-token\n", None)]
)
def test_tokens(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, token: str, error: type[Exception] | None
) -> None:
    monkeypatch.setenv("OCTAD_TOKEN", token)
    if error is None:
        assert connect().json("GET", "/api/fleet")
    else:
        with pytest.raises(error):
            connect().json("GET", "/api/fleet")


def test_a_token_in_a_file(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.delenv("OCTAD_TOKEN")
    monkeypatch.setenv("OCTAD_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(AccessError, match="cannot read"):
        connect()
    (tmp_path / "token").write_text("a-token\n")
    assert connect().json("GET", "/api/fleet")

    (tmp_path / "token").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(AccessError, match="is no token"):
        connect()


@pytest.mark.parametrize("token", ["a\nb", "é", "\udcff", "a\x00b"])
def test_what_cannot_be_a_token_is_never_sent(token: str) -> None:
    environ = {"OCTAD_URL": "http://127.0.0.1:9", "OCTAD_TOKEN": token}
    with pytest.raises(AccessError, match="OCTAD_TOKEN: what is there is no token"):
        connect(environ)


@pytest.mark.parametrize(
    "url",
    ["foo", "ftp://x", "http://[::1", "http://x:99999", "http://x:y", "http://:80", "http://a b",
     "http://x\ny", "http://x/é"],
)  # fmt: skip
def test_what_cannot_be_an_address_is_one_line(url: str) -> None:
    with pytest.raises(ConfigError, match="is no address"):
        connect({"OCTAD_URL": url, "OCTAD_TOKEN": "x"})


def test_proxies_are_never_used_for_this_machine(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:9")
    assert connect().json("GET", "/api/fleet")


def test_a_lost_answer_is_asked_for_again(stand_in: StandIn) -> None:
    stand_in.losses = 2
    assert connect().json("GET", "/api/fleet")
    assert stand_in.requests.count("GET /api/fleet") == 3


def test_what_might_be_done_twice_is_not_sent_again(stand_in: StandIn, conftest: Any) -> None:
    stand_in.views["mine"] = [conftest.run_view("mine", "running", conftest.stage("a"))]
    stand_in.losses = 1
    with pytest.raises(UnreachableError, match="may or may not"):
        connect().json("POST", "/api/runs/mine/resume", {}, is_repeatable=False)
    assert len(stand_in.resumed) == 1


def test_nobody_there_says_where_and_what_to_do() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(UnreachableError, match="Connection refused") as caught:
        Wire(Address(url, "t"), patience_s=0.05).json("GET", "/api/runs")
    assert caught.value.where == url
    assert caught.value.hint


def test_a_control_plane_that_moved_is_found_again(stand_in: StandIn) -> None:
    gone = Address("http://127.0.0.1:9", "t")
    wire = Wire(gone, revive=lambda: Address(stand_in.url, "a-token"))
    assert wire.json("GET", "/api/fleet")
    assert json.dumps(wire.address.url) == json.dumps(stand_in.url)
