"""What may be unpacked, judged by what a zip says of itself."""

from __future__ import annotations

import stat
import zipfile
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octad.errors import PackageError
from octad.spec.archives import ArchiveLimits, check_members

LIMITS = ArchiveLimits(members=5, member_bytes=1 << 30, bytes=1 << 30)


def member(
    name: str, size: int = 10, *, packed: int | None = None, mode: int = 0
) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("x")
    info.filename = info.orig_filename = name
    info.file_size, info.compress_size = size, size if packed is None else packed
    info.external_attr = mode << 16
    return info


def refused(*members: zipfile.ZipInfo) -> str:
    with pytest.raises(PackageError) as error:
        check_members(members, LIMITS, "a.zip")
    return str(error.value)


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "/etc/passwd", "C:/x", "C:x", "//h/x", "..", ".", ""]
)
def test_names_that_lead_out_are_refused(name: str) -> None:
    assert "leads out" in refused(member(name))


@pytest.mark.parametrize("name", ["a\\..\\..\\x", "a\0.py", "x" * 1025])
def test_names_that_cannot_be_are_refused(name: str) -> None:
    assert "cannot be" in refused(member(name))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (stat.S_IFLNK, "a link"),
        (stat.S_IFCHR, "no file"),
        (stat.S_IFBLK, "no file"),
        (stat.S_IFIFO, "no file"),
        (stat.S_IFSOCK, "no file"),
    ],
)
def test_what_is_no_file_is_refused(kind: int, words: str) -> None:
    assert words in refused(member("a", mode=kind | 0o644))


def test_what_is_too_much_is_refused() -> None:
    assert "more than 5 files" in refused(*(member(f"a{n}") for n in range(6)))
    assert "a file of" in refused(member("a", (1 << 30) + 1, packed=1 << 30))
    half = (1 << 29) + 1
    assert "unpacks to more" in refused(*(member(f"a{n}", half) for n in range(2)))
    assert "unpacks from 1,000,000 to" in refused(member("a", 1 << 29, packed=10**6))
    assert "twice" in refused(member("a"), member("./a"))
    locked = member("a")
    locked.flag_bits = 1
    assert "password" in refused(locked)


def test_what_is_fine_passes() -> None:
    members = [member("a/"), member("a/b.py", mode=stat.S_IFREG | 0o755), member("zeros", 1 << 20)]
    members[2].compress_size = 1000
    assert check_members(members, LIMITS, "a.zip") == members[1:]


@given(st.text(alphabet="./\\ab:\0 é", max_size=12))
def test_no_name_leads_out_whatever_it_is(name: str) -> None:
    files = []
    with suppress(PackageError):
        files = check_members([member(name)], LIMITS, "a.zip")
    for info in files:
        assert not info.filename.startswith("/")
        assert ".." not in info.filename.split("/")
