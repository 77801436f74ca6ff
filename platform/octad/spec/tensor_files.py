"""What a folder of weights is: which files count, and what the headers of its safetensors say, on a
laptop that sends it and on a node that reads it. Looks at names and headers; weights stay unread.

The format: 8 bytes with the header's length (little-endian), the header as JSON, then the tensors'
bytes (https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from octad.errors import DataError

FolderKind = Literal["hugging_face", "peft"]
CONFIG, TOKENIZER, INDEX = "config.json", "tokenizer.json", "model.safetensors.index.json"
WHOLE, SUFFIX = "model.safetensors", ".safetensors"
ADAPTER_CONFIG, ADAPTER = "adapter_config.json", "adapter_model.safetensors"
# Formats that may run code when they are opened.
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_ITEM_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 1),
}
_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000  # the format's own limit
_MOST_CONFIG_BYTES, _MOST_INDEX_BYTES = 1 << 20, 64 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor, as a header has it.

    Attributes:
        file: The name of the file that holds it.
        dtype: As safetensors writes it: `F32`, `BF16`.
        shape: Of the tensor.
    """

    file: str
    dtype: str
    shape: tuple[int, ...]


def listed(root: Path, where: str) -> dict[str, Path]:
    """The files directly in a folder, by name. Links are followed: a folder of Hugging Face's cache
    is made of them.

    Raises:
        DataError: There is no such folder.
    """
    if not root.is_dir():
        what = "is a file, not a folder" if root.exists() else "is not there"
        raise DataError(
            f"{root} {what}", where=where, hint="name a folder that holds safetensors files"
        )
    try:
        return {path.name: path for path in sorted(root.iterdir()) if path.is_file()}
    except OSError as error:
        raise DataError(f"{root} cannot be listed: {error.strerror}", where=where) from None


def used(kind: FolderKind, found: Mapping[str, Path], where: str) -> dict[str, Path]:
    """Those of the files of a folder that a model or an adapter is made of.

    Args:
        kind: What the folder holds.
        found: Its files by name.
        where: The folder, for messages.

    Raises:
        DataError: One is missing, or there are only files that may run code.
    """
    if kind == "peft":
        names = [ADAPTER_CONFIG, *_weights(found, [ADAPTER], where)]
    else:
        names = [CONFIG, TOKENIZER, *_model_weights(found, where)]
    for name in names:
        if name not in found:
            raise DataError(f"there is no {name}", where=where, hint=_HINTS.get(name, ""))
    return {name: found[name] for name in names}


_HINTS = {
    TOKENIZER: "save it beside the weights: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
    CONFIG: "name the folder that a Hugging Face model was saved to",
    ADAPTER_CONFIG: "name the folder that a PEFT adapter was saved to",
}


def _model_weights(found: Mapping[str, Path], where: str) -> list[str]:
    if WHOLE in found or INDEX not in found:
        return _weights(found, [WHOLE], where)
    shards = sorted(set(shard_of(found[INDEX], where).values()))
    for shard in shards:
        if shard not in found:
            raise DataError(
                f"{INDEX} names {shard}, which is not there",
                where=where,
                hint="download the folder again",
            )
    return [INDEX, *shards]


def _weights(found: Iterable[str], wanted: list[str], where: str) -> list[str]:
    if not set(wanted) <= set(found):
        pickles = sorted(name for name in found if name.endswith(PICKLES))
        if pickles:
            raise DataError(
                f"{pickles[0]} may run code when it is opened, and is not read",
                where=where,
                hint="save it again as safetensors: save_pretrained(DIR, safe_serialization=True)",
            )
        shards = sorted(name for name in found if name.endswith(SUFFIX))
        more = f", and no {INDEX} for {shards[0]}" if shards and WHOLE in wanted else ""
        raise DataError(f"there is no {wanted[0]}{more}", where=where)
    return wanted


def read_json(path: Path, where: str, most_bytes: int = _MOST_CONFIG_BYTES) -> dict[str, Any]:
    """A file that holds one JSON object.

    Raises:
        DataError: It does not, or is too large for what it is.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(most_bytes + 1)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=where) from None
    if len(raw) > most_bytes:
        raise DataError(f"has more than {most_bytes} bytes", where=where)
    try:
        return _object(raw)
    except (ValueError, RecursionError) as error:
        raise DataError(f"is not a JSON object: {_line(error)}", where=where) from None


def shard_of(index: Path, where: str) -> dict[str, str]:
    """What an index says: the name of each tensor to that of its file.

    Raises:
        DataError: It says nothing, or names a file outside of the folder.
    """
    place = f"{where}/{INDEX}"
    named = read_json(index, place, _MOST_INDEX_BYTES).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise DataError("has no weight_map", where=place)
    for tensor, shard in named.items():
        if not isinstance(shard, str) or not shard.endswith(SUFFIX):
            raise DataError(f"{tensor} lies in {shard!r}, no {SUFFIX} file", where=place)
        if "/" in shard or "\\" in shard or shard.startswith("."):
            raise DataError(f"{tensor} lies in {shard!r}, outside of the folder", where=place)
    return named


def tensors(files: Mapping[str, Path], where: str) -> dict[str, Entry]:
    """All tensors of a folder, by name.

    Args:
        files: What `used` gave.
        where: The folder, for messages.

    Raises:
        DataError: A header cannot be, or the index says otherwise.
    """
    found: dict[str, Entry] = {}
    for name, path in files.items():
        if name.endswith(SUFFIX):
            for tensor, entry in header(path, name, where).items():
                if tensor in found:
                    raise DataError(
                        f"{tensor} is in {found[tensor].file} as well", where=f"{where}/{name}"
                    )
                found[tensor] = entry
    if INDEX in files:
        named = shard_of(files[INDEX], where)
        for tensor in sorted({*named, *found}):
            lies = found[tensor].file if tensor in found else "no file"
            said = named.get(tensor, "no file")
            if lies != said:
                raise DataError(
                    f"{tensor} lies in {lies}, but {INDEX} says {said}",
                    where=where,
                    hint="download the folder again",
                )
    return found


def header(path: Path, name: str, where: str) -> dict[str, Entry]:
    """The tensors of one file of safetensors, after checking that they fill it exactly.

    Raises:
        DataError: It is cut or damaged, or its header cannot be.
    """
    try:
        entries, size = _raw_header(path)
        places = [_place(tensor, raw) for tensor, raw in entries.items()]
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=f"{where}/{name}") from None
    except _Unfit as error:
        raise DataError(str(error), where=f"{where}/{name}", hint="download it again") from None
    end = 0
    for begin, until, tensor, _, _ in sorted(places, key=lambda place: place[:2]):
        if begin != end:
            what = "overlaps with another tensor" if begin < end else "leaves a gap before it"
            raise DataError(f"{tensor} {what}", where=f"{where}/{name}", hint="download it again")
        end = until
    if end != size:
        what = f"its tensors take {end} bytes, but it has {size} for them"
        raise DataError(what, where=f"{where}/{name}", hint="download it again")
    return {tensor: Entry(name, dtype, shape) for _, _, tensor, dtype, shape in places}


class _Unfit(Exception):  # noqa: N818
    """What is wrong with a header."""


def _raw_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a file, and how many bytes follow it."""
    whole = path.stat().st_size
    with path.open("rb") as file:
        raw = file.read(_LENGTH_BYTES)
        if len(raw) < _LENGTH_BYTES:
            raise _Unfit(f"is no safetensors file: it has {whole} bytes")
        (length,) = struct.unpack("<Q", raw)
        if length > min(whole - _LENGTH_BYTES, _MOST_HEADER_BYTES):
            raise _Unfit(f"its header would have {length} bytes, the file has {whole}")
        text = file.read(length)
    try:
        entries = _object(text)
    except (ValueError, RecursionError) as error:
        raise _Unfit(f"its header is not a JSON object: {_line(error)}") from None
    entries.pop("__metadata__", None)
    return entries, whole - _LENGTH_BYTES - length


def _place(tensor: str, raw: Any) -> tuple[int, int, str, str, tuple[int, ...]]:
    """Where a tensor begins and ends, its name, dtype and shape."""
    if not isinstance(raw, dict) or raw.keys() != {"dtype", "shape", "data_offsets"}:
        raise _Unfit(f"{tensor} needs a dtype, a shape and data_offsets")
    dtype, shape, offsets = raw["dtype"], raw["shape"], raw["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise _Unfit(f"{tensor} is of an unknown dtype, {dtype!r}")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise _Unfit(f"{tensor} has the shape {shape!r} at {offsets!r}")
    begin, end = offsets
    size = math.prod(shape) * _ITEM_BYTES[dtype]
    if end - begin != size:
        raise _Unfit(f"{tensor} takes {size} bytes, but has {end - begin}")
    return begin, end, tensor, dtype, tuple(shape)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _object(raw: bytes) -> dict[str, Any]:
    """A JSON object without a key that is there twice.

    Raises:
        ValueError: It is none.
    """
    value = json.loads(raw.decode(), object_pairs_hook=_once)
    if not isinstance(value, dict):
        raise ValueError(f"it is a {type(value).__name__}")  # noqa: TRY004  as json's own errors
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is there twice")
    return made


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
