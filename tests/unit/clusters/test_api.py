from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octad.clusters._api import RayApi, last_line
from octad.errors import AccessError, ConfigError, UnreachableError


@pytest.fixture
def api(dashboard: Any) -> Iterator[RayApi]:
    api = RayApi(dashboard.address, cluster="alpha", token_file=None, timeout_s=5)
    yield api
    api.close()


def with_token(dashboard: Any, file: Path | None) -> RayApi:
    dashboard.token = "right-token"
    return RayApi(dashboard.address, cluster="alpha", token_file=file)


def test_a_token_with_a_newline_at_its_end_is_good(dashboard: Any, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("right-token\n")
    assert with_token(dashboard, file).check_version() == "2.60.0"


def test_no_token_and_a_wrong_one_are_told_apart(dashboard: Any, tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="wants a token and none is configured") as none:
        with_token(dashboard, None).check_version()
    assert "token_file" in none.value.hint
    file = tmp_path / "token"
    file.write_text("a-token-of-beta")
    with pytest.raises(AccessError, match="refuses the token") as wrong:
        with_token(dashboard, file).check_version()
    assert str(file) in wrong.value.hint
    assert "a-token-of-beta" not in str(wrong.value)


def test_a_refusal_that_is_not_about_tokens_shows_its_own_reason(dashboard: Any) -> None:
    dashboard.refusal = "this path is closed on Sundays"
    api = RayApi(dashboard.address, cluster="alpha", token_file=None)
    with pytest.raises(AccessError, match="answers 403: this path is closed on Sundays") as caught:
        api.check_version()
    assert "token" not in str(caught.value)


def test_an_empty_or_missing_token_file_is_named_before_anything_is_sent(
    dashboard: Any, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    with pytest.raises(AccessError, match="No such file"):
        with_token(dashboard, file).check_version()
    file.write_text("\n")
    with pytest.raises(AccessError, match="is empty"):
        with_token(dashboard, file).check_version()
    assert dashboard.calls == []


def test_a_new_token_is_taken_up(dashboard: Any, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    api = with_token(dashboard, file)
    with pytest.raises(AccessError):
        api.check_version()
    file.write_text("right-token")
    assert api.check_version() == "2.60.0"


def test_nobody_there(unused_port: int) -> None:
    api = RayApi(f"http://127.0.0.1:{unused_port}", cluster="alpha", token_file=None)
    with pytest.raises(UnreachableError, match="cluster alpha does not answer") as caught:
        api.check_version()
    assert caught.value.where == api.address


def test_an_answer_that_does_not_come_in_time(dashboard: Any) -> None:
    dashboard.delay_s = 1.0
    api = RayApi(dashboard.address, cluster="alpha", token_file=None, timeout_s=0.1)
    with pytest.raises(UnreachableError, match="does not answer in time"):
        api.check_version()


def test_a_read_whose_connection_breaks_is_tried_again(dashboard: Any, api: RayApi) -> None:
    dashboard.drop_next = 2
    assert api.check_version() == "2.60.0"
    assert len(dashboard.calls) == 3


def test_a_call_that_may_have_arrived_is_not_sent_twice(dashboard: Any, api: RayApi) -> None:
    dashboard.drop_next = 1
    with pytest.raises(UnreachableError):
        api.send("POST", "/api/jobs/", is_repeatable=False, json={})
    assert dashboard.calls == ["POST /api/jobs/"]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"version": "4", "ray_version": "2.40.0"}, "2.40.0"),
        ({"version": "4", "ray_version": "3.0.0"}, "3.0.0"),
        ({"version": "5", "ray_version": "2.60.0"}, "Jobs API 5"),
    ],
)
def test_a_version_that_does_not_fit_names_both(
    dashboard: Any, api: RayApi, answer: dict[str, str], says: str
) -> None:
    dashboard.version = answer
    with pytest.raises(ConfigError, match=says) as caught:
        api.check_version()
    assert "2.60.0 (Jobs API 4)" in caught.value.what


@pytest.mark.parametrize("answer", [{}, {"ray_version": "<html>"}, ["2.60.0"]])
def test_what_is_no_ray_is_said_to_be_none(dashboard: Any, api: RayApi, answer: Any) -> None:
    dashboard.version = answer
    with pytest.raises(UnreachableError):
        api.check_version()


@pytest.mark.parametrize("ray", ["2.60.1", "2.56.0", "2.61.0rc1"])
def test_a_version_nearby_is_fine(dashboard: Any, api: RayApi, ray: str) -> None:
    dashboard.version = {"version": "4", "ray_version": ray}
    assert api.check_version() == ray


def test_proxies_of_the_environment_are_not_used(
    dashboard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    api = RayApi(dashboard.address, cluster="alpha", token_file=None)
    assert api.check_version() == "2.60.0"


def test_certificates_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("nothing")
    with pytest.raises(ConfigError, match="no certificates can be read"):
        RayApi("https://head:8265", cluster="alpha", token_file=None, ca_file=file)


def test_the_point_of_a_traceback_is_its_last_line() -> None:
    assert last_line("Traceback\n  File x\nValueError: no such thing\n.\n\n") == (
        "ValueError: no such thing"
    )
    assert last_line("") == "nothing"
