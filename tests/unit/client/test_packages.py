"""The code package."""

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from octad.client import packages
from octad.client.packages import build_package
from octad.errors import NotFoundError, OctadError, PackageError


def entries(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "My Drive" / "日本 (1)" / "proj's"
    (folder / "sub").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "sub" / "naïve file.txt").write_text("x")
    (folder / "run.sh").write_text("#!/bin/sh\necho hi\n")
    (folder / "run.sh").chmod(0o755)
    for left in (".git/objects/aa", "__pycache__/x.pyc", ".venv/bin/python", "mlruns/0/meta.yaml"):
        path = folder / left
        path.parent.mkdir(parents=True)
        path.write_text("left behind")
    return folder


def test_octad_alone() -> None:
    found = entries(build_package().data)
    assert {"platform/octad/__init__.py", "jobs/pretrain.py", "conf/config.yaml"} <= set(found)
    assert not [name for name in found if "__pycache__" in name or name.endswith(".pyc")]
    assert list(found) == sorted(found)


def test_own_code_is_laid_over_it_and_leftovers_stay(code: Path) -> None:
    found = entries(build_package(code).data)
    own = {name for name in found if not name.startswith(("platform/", "jobs/", "conf/"))}
    assert own == {"train.py", "sub/naïve file.txt", "run.sh"}
    with zipfile.ZipFile(io.BytesIO(build_package(code).data)) as archive:
        assert archive.getinfo("run.sh").external_attr >> 16 == 0o100755
        assert archive.getinfo("train.py").external_attr >> 16 == 0o100644


def test_times_do_not_matter(code: Path) -> None:
    first = build_package(code)
    for path in code.rglob("*"):
        os.utime(path, (0, 0))
    os.utime(code / "train.py", (7_258_118_400, 7_258_118_400))  # the year 2200
    assert build_package(code).digest == first.digest
    (code / "train.py").write_text("print(2)\n")
    assert build_package(code).digest != first.digest


def test_own_rules_say_what_stays(code: Path) -> None:
    (code / ".octadignore").write_text("sub/\n# a comment\n!mlruns/\n")
    found = entries(build_package(code).data)
    assert "sub/naïve file.txt" not in found
    assert "mlruns/0/meta.yaml" in found
    assert ".octadignore" not in found


def test_archives_and_single_files(code: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.write(code / "train.py", "train.py")
    with tarfile.open(tmp_path / "code.tar.gz", "w:gz") as tar:
        tar.add(code / "train.py", "./train.py")
    for place in (tmp_path / "code.zip", tmp_path / "code.tar.gz", code / "train.py"):
        assert entries(build_package(place).data)["train.py"] == b"print(1)\n"


def test_relative_and_home_paths(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = build_package(code).digest
    monkeypatch.chdir(code.parent)
    monkeypatch.setenv("HOME", str(code.parent))
    for typed in ("proj's", "proj's/", "./proj's", "~/proj's"):
        assert build_package(Path(typed)).digest == digest


def test_too_large_names_the_limit_and_the_largest(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "MAX_BYTES", 8 << 20)
    with (code / "weights.bin").open("wb") as file:
        file.truncate(9 << 20)
    with pytest.raises(PackageError) as caught:
        build_package(code)
    assert "the limit is 8.0 MiB; the largest: weights.bin (9.0 MiB)" in caught.value.what
    assert ".octadignore" in caught.value.hint


def test_too_many_files_names_the_folders(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "MAX_ENTRIES", 600)
    (code / "many").mkdir()
    for number in range(600):
        (code / "many" / str(number)).touch()
    with pytest.raises(PackageError, match=r"the limit is 600; most lie in many \(600\)"):
        build_package(code)


def refused(code: Path) -> OctadError:
    with pytest.raises(OctadError) as caught:
        build_package(code)
    return caught.value


def test_links(code: Path, tmp_path: Path) -> None:
    (code / "same.py").symlink_to("train.py")
    (code / "round").symlink_to(code)
    assert entries(build_package(code).data)["same.py"] == b"print(1)\n"
    (code / "out").symlink_to(tmp_path)
    assert "a link out of" in refused(code).what
    (code / "out").unlink()
    (code / "gone").symlink_to("nowhere")
    assert refused(code).where == str(code / "gone")


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [("start.sh", b"echo a\necho b\r\n", 2), ("tool.py", b"#!/usr/bin/env python\r\nx = 1\r\n", 1)],
)
def test_windows_line_ends_are_caught_with_their_line(
    code: Path, name: str, content: bytes, line: int
) -> None:
    (code / name).write_bytes(content)
    assert refused(code).where == f"{code / name}:{line}"


def test_windows_line_ends_that_do_no_harm(code: Path) -> None:
    (code / "mine.py").write_bytes(b"x = 1\r\n")
    assert "mine.py" in entries(build_package(code).data)


@pytest.mark.parametrize(
    "name", ["platform/octad/mine.py", "jobs/mine.py", "platform/__init__.py", "platform.py"]
)
def test_nothing_of_octads_can_be_hidden(code: Path, name: str) -> None:
    (code / name).parent.mkdir(parents=True, exist_ok=True)
    (code / name).write_text("")
    assert refused(code).exit_code == PackageError.exit_code


def test_a_checkout_of_octad_is_fine_as_own_code() -> None:
    checkout = Path(packages.__file__).resolve().parents[3]
    assert "pyproject.toml" in entries(build_package(checkout).data)


def test_what_is_no_code(code: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert "neither" in refused(tmp_path / "notes.txt").what
    with pytest.raises(NotFoundError):
        build_package(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["../out.py", "/abs.py"])
def test_an_archive_that_reaches_out_is_refused(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr(name, "x")
    assert "leads out" in refused(tmp_path / "bad.zip").what


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_archive_is_refused_whatever_its_compression(tmp_path: Path, method: int) -> None:
    path = tmp_path / "bad.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a.py", "".join(f"x = {n}\n" for n in range(2000)))
    damaged = bytearray(path.read_bytes())
    for place in range(60, 90):
        damaged[place] ^= 0xFF
    path.write_bytes(damaged)
    assert "cannot be unpacked" in refused(path).what
