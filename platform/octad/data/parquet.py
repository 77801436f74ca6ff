"""The text column of a Parquet file, whatever Arrow type holds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from octad.errors import DataError

_ROWS_AT_ONCE = 1024


def texts(file: IO[bytes], part: str, column: str) -> Iterator[tuple[int, bytes | None]]:
    """Row number, from 0, and the bytes of the text, or None for a null.

    Strings of any kind, binaries, dictionaries of them, and columns that are all null. A file
    without rows is fine, whatever its columns.

    Args:
        file: Open for reading, able to seek.
        part: Its name, for messages.
        column: The column that holds the text.

    Raises:
        DataError: It is cut off, damaged, no Parquet file, or has no such column of text.
    """
    try:
        reader = pq.ParquetFile(file)
        if reader.metadata.num_rows == 0:
            return
        _check_column(reader.schema_arrow, part, column)
        row = 0
        for batch in reader.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[column]):
            for raw in batch.column(0).cast(pa.large_binary()).to_pylist():
                yield row, raw
                row += 1
    except (pa.ArrowException, OSError, EOFError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"not a whole Parquet file: {reason}", where=part) from None


def _check_column(schema: Any, part: str, column: str) -> None:
    known = [f"{field.name} ({field.type})" for field in schema]
    if schema.names.count(column) != 1:
        what = "no" if column not in schema.names else "more than one"
        raise DataError(
            f"{what} column {column!r}; its columns are: {', '.join(known) or 'none'}",
            where=part,
            hint="set text_key of the data",
        )
    kind = schema.field(column).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not _is_text(kind):
        raise DataError(f"column {column!r} holds {kind}, not text", where=part)


def _is_text(kind: Any) -> bool:
    checks = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_null,
    )
    return any(check(kind) for check in checks)
