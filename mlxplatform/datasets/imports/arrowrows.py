"""Rows of Parquet and Arrow files, the latter as the datasets library saves them to disk. Read in batches.

Columnar files give every row every column: what is null there was never said, so it is left out, at every level. A value
that Python cannot hold (a date beyond its calendar, text in another encoding) is an error of its row, and only where
the row is made of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from mlxplatform.datasets.columnar import AS_JSON, OURS, WRITTEN_AS_JSON
from mlxplatform.datasets.convert import Strange, name_of
from mlxplatform.datasets.imports.items import Plain, Problem, Unreadable, named

#: Rows decoded at once, at most, and bytes of them: a row may be an encyclopaedia.
BATCH, BATCH_BYTES = 1000, 16 * 1024 * 1024
#: Rows decoded at once, at least, where a column's texts are written once for many rows; bytes read at once.
FEWEST, BUFFER_BYTES = 16, 1024 * 1024
#: Rows turned into Python's objects at once.
AT_ONCE = 100


def read(stream: BinaryIO, form: str, name: str) -> Iterator[Plain]:
    """Raises Unreadable."""
    import pyarrow

    number = 0
    try:
        for batch in _parquet(stream) if form == "parquet" else _arrow(stream):
            _check_columns(batch.schema.names, name)
            for start in range(0, batch.num_rows, AT_ONCE):
                for row in _rows(batch.slice(start, AT_ONCE)):
                    number += 1
                    yield _problem(row, number, name) or (f"row {number}", row)
    except (pyarrow.ArrowException, OSError, ValueError, NotImplementedError):
        kind = {"parquet": "Parquet", "arrow": "Arrow"}[form]
        where = f" after row {number}" if number else ""
        raise Unreadable(f"not_{form}", f"{named(name)} is no {kind} file that can be read, or is damaged{where}.") from None


def _parquet(stream: BinaryIO) -> Iterator[Any]:
    import pyarrow.parquet

    # No buffering ahead of whole row groups: memory stays flat whatever the file's size.
    file = pyarrow.parquet.ParquetFile(stream, pre_buffer=False, buffer_size=BUFFER_BYTES)
    for place in range(file.num_row_groups):
        group = file.metadata.row_group(place)
        if group.num_rows:
            yield from file.iter_batches(batch_size=_fitting(group), row_groups=[place])


def _fitting(group: Any) -> int:
    """Rows of a group to decode at once, by their size and by that of the texts that are written once for many rows."""
    each = max(group.total_byte_size // group.num_rows, 1)
    repeated = 1
    for place in range(group.num_columns):
        column = group.column(place)
        if column.has_dictionary_page and column.dictionary_page_offset is not None:
            packed = max(column.data_page_offset - column.dictionary_page_offset, 0)
            # Packed, with the pages' headers; unpacked as the whole column is, which it cannot exceed.
            swollen = packed * column.total_uncompressed_size // max(column.total_compressed_size, 1)
            repeated += min(swollen, column.total_uncompressed_size)
    # Dictionaries end at a megabyte or so, mostly of small texts; one that does not holds large ones.
    fewest = FEWEST if repeated <= BATCH_BYTES else 1
    return max(1, min(BATCH, BATCH_BYTES // each, max(BATCH_BYTES // repeated, fewest)))


def _arrow(stream: BinaryIO) -> Iterator[Any]:
    """The streaming form, which save_to_disk writes, or the file form."""
    import pyarrow.ipc

    if stream.read(6) == b"ARROW1":
        stream.seek(0)
        file = pyarrow.ipc.open_file(stream)
        batches = (file.get_batch(place) for place in range(file.num_record_batches))
    else:
        stream.seek(0)
        batches = iter(pyarrow.ipc.open_stream(stream))
    yield from batches


def _check_columns(names: list[str], file: str) -> None:
    for place, column in enumerate(names):
        if column in names[:place]:
            raise Unreadable("duplicate_column", f"{named(file)} has two columns called {name_of(column)!r}. Rename one of them.")


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
    ours = OURS in (batch.schema.metadata or {})
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        flagged = WRITTEN_AS_JSON in (field.metadata or {})
        as_json = flagged or (not ours and field.name in AS_JSON)
        columns.append([_value(value, as_json) for value in _values(column)])
    names = batch.schema.names
    for row in zip(*columns, strict=True):
        yield {name: value for name, value in zip(names, row, strict=True) if value is not None or name == "content"}


def _value(value: Any, as_json: bool) -> Any:
    return _from_json(value) if as_json else _said(value)


def _values(column: Any) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    except (ValueError, KeyError, OverflowError, NotImplementedError):
        return [_cell(cell) for cell in column]
    return values


def _cell(cell: Any) -> Any:
    try:
        return cell.as_py(maps_as_pydicts="strict")
    except UnicodeDecodeError:
        return Strange("text that is not UTF-8")
    except KeyError:
        return Strange("a map with a key twice")
    except (ValueError, OverflowError, NotImplementedError):
        return Strange(f"a value that is not understood ({str(cell.type)[:60]})")


def _problem(row: dict[str, Any], number: int, name: str) -> Problem | None:
    """What is wrong with a row that keeps a value nobody can write down."""
    for key in AS_JSON & row.keys():
        if isinstance(row[key], Strange):
            return Problem(f"row {number}", "bad_value", f"is {row[key].what}", file=name, field=key)
    return None


def _said(value: Any, key: str = "") -> Any:
    """Without keys whose value is null, except a turn's content: there null is a statement. JSON columns as values."""
    if isinstance(value, dict):
        return {name: _said(entry, name) for name, entry in value.items() if entry is not None or name == "content"}
    if isinstance(value, list):
        return [_said(entry) for entry in value]
    return _from_json(value) if key in AS_JSON else value


def _from_json(value: Any) -> Any:
    if not isinstance(value, str):
        return _said(value)
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value
