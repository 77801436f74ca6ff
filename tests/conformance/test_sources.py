"""What every kind of text source keeps to."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octad.errors import ConfigError, DataError
from octad.ports.data import Skipped, Source, SourceSettings
from octad.ports.registry import kinds, load
from octad.spec.stages import StoreSpec
from octad.storage import ObjectStore

PACKAGE = "octad.data.sources"
ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "ray", "pyarrow", "numpy", "tokenizers", "obstore"}


def needed(kind: str, folder: Path) -> dict[str, Any]:
    """Settings without which a kind cannot be."""
    if kind != "folder":
        return {}
    for name in ("b.txt", "a/c.md"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"text of {name}\n")
    (folder / "d.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    return {"path": str(folder)}


@pytest.fixture(params=kinds(PACKAGE))
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    module = load(PACKAGE, request.param)
    store = ObjectStore(StoreSpec(url=f"file://{tmp_path}/store"))
    (tmp_path / "text").mkdir()
    settings = module.Settings.parse(needed(request.param, tmp_path / "text"))
    built: Source = module.build(settings, store)
    return built


def test_parts_are_sorted_unique_and_the_same_each_time(source: Source) -> None:
    parts = list(source.parts())
    assert parts
    assert parts == sorted(set(parts))
    assert parts == list(source.parts())


def test_sizes_and_reasons_are_plain(source: Source) -> None:
    assert all(source.size_bytes(part) > 0 for part in source.parts())
    assert not set(source.left_out()) & set(source.parts())


def test_every_part_reads_as_clean_text_the_same_each_time(source: Source) -> None:
    for part in list(source.parts())[:40]:
        skipped = Skipped()
        documents = list(source.read(part, skipped))
        assert documents == list(source.read(part, Skipped()))
        for document in documents:
            assert document.text.encode().decode() == document.text
            assert "\r" not in document.text
            assert document.name.startswith(part)
        assert skipped == Skipped()


def test_a_part_that_is_not_there_is_named(source: Source) -> None:
    with pytest.raises(DataError) as caught:
        list(source.read("not-a-part.txt", Skipped()))
    assert "not-a-part.txt" in caught.value.where


@pytest.mark.parametrize("kind", kinds(PACKAGE))
def test_settings_share_keys_and_refuse_others(kind: str, tmp_path: Path) -> None:
    settings = load(PACKAGE, kind).Settings
    assert issubclass(settings, SourceSettings)
    parsed = settings.parse({**needed(kind, tmp_path), "limit_bytes": 7, "on_error": "count"})
    assert (parsed.limit_bytes, parsed.on_error) == (7, "count")
    with pytest.raises(ConfigError, match="limit_bytes"):
        settings.parse({**needed(kind, tmp_path), "limit_byte": 7}, where="data")


@pytest.mark.parametrize("kind", kinds(PACKAGE))
def test_the_module_is_light_enough_for_a_laptop(kind: str) -> None:
    program = f"import sys, {PACKAGE}.{kind}; print(*{{m.partition('.')[0] for m in sys.modules}})"
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": "platform"},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert not HEAVY & set(told.stdout.split())


@pytest.mark.parametrize("kind", kinds(PACKAGE))
def test_the_conf_group_has_an_option_of_every_kind(kind: str) -> None:
    options = [path.read_text() for path in (ROOT / "conf" / "data").glob("*.yaml")]
    assert any(f"kind: {kind}\n" in option for option in options)
